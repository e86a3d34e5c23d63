"""CreatePartitions (key 37): more partitions for a topic (KIP-195). v2 flexible · v3 quota errors (KIP-599)."""

from collections import Counter
from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_QUOTA_ERRORS = 3


def handle(call: KafkaCall) -> None:
    call.broker.tasks.start(_add_all(call))


async def _add_all(call: KafkaCall) -> None:
    names = Counter(topic.name for topic in call.request.topics)
    asked = {topic.name: topic for topic in call.request.topics}
    call.answer({"results": [await _add(call, each, names[name]) for name, each in asked.items()]})


async def _add(call: KafkaCall, asked: Any, times_named: int) -> dict[str, Any]:
    error = None
    try:
        if times_named > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{asked.name}' is named twice")
        assignment = None if asked.assignments is None else [assignment.broker_ids for assignment in asked.assignments]
        topics = call.broker.topics
        await topics.add_partitions(asked.name, asked.count, assignment, check_only=True)
        if not call.request.validate_only:
            call.mutate(asked.count - len(topics.existing(asked.name).partitions), strict_from=_QUOTA_ERRORS)
            await topics.add_partitions(asked.name, asked.count, assignment)
    except RequestError as failure:
        error = failure
    return {"name": asked.name, **result_errors.fields(error)}
