"""CreatePartitions (key 37): more partitions for a topic (KIP-195). v2 flexible · v3 quota errors (KIP-599)."""

from collections import Counter
from typing import Any

from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError

_QUOTA_ERRORS = 3


def handle(call: Call) -> None:
    call.broker.tasks.start(_add_all(call))


async def _add_all(call: Call) -> None:
    names = Counter(each.name for each in call.request.topics)
    asked = {each.name: each for each in call.request.topics}
    call.answer({"results": [await _add(call, each, names[name]) for name, each in asked.items()]})


async def _add(call: Call, asked: Any, times_named: int) -> dict[str, Any]:
    error = None
    try:
        if times_named > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{asked.name}' is named twice")
        assignment = None if asked.assignments is None else [each.broker_ids for each in asked.assignments]
        topics = call.broker.topics
        await topics.add_partitions(asked.name, asked.count, assignment, check_only=True)
        if not call.request.validate_only:
            call.mutate(asked.count - len(topics.existing(asked.name).partitions), strict_from=_QUOTA_ERRORS)
            await topics.add_partitions(asked.name, asked.count, assignment)
    except RequestError as failure:
        error = failure
    return {"name": asked.name, **errors.fields(error)}
