"""CreatePartitions (key 37): more partitions for a topic (KIP-195). v2 flexible · v3 quota errors (KIP-599)."""

from collections import Counter
from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_QUOTA_ERRORS = 3


def handle(call: KafkaCall) -> None:
    call.start(_add_all(call))


async def _add_all(call: KafkaCall) -> None:
    names = Counter(topic.name for topic in call.request.topics)
    requested = {topic.name: topic for topic in call.request.topics}
    call.answer({"results": [await _add(call, topic, names[name]) for name, topic in requested.items()]})


async def _add(call: KafkaCall, requested: Any, times_named: int) -> dict[str, Any]:
    error = None
    try:
        if times_named > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{requested.name}' is named twice")
        assignment = (
            None if requested.assignments is None else [assignment.broker_ids for assignment in requested.assignments]
        )
        topics = call.broker.topics
        await topics.add_partitions(requested.name, requested.count, assignment, check_only=True)
        if not call.request.validate_only:
            call.charge_mutations(
                requested.count - len(topics.existing(requested.name).partitions), strict_from=_QUOTA_ERRORS
            )
            await topics.add_partitions(requested.name, requested.count, assignment)
    except RequestError as failure:
        error = failure
    return {"name": requested.name, **result_errors.fields(error)}
