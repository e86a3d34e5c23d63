"""CreatePartitions (key 37): more partitions for a topic (KIP-195). v2 flexible · v3 quota errors (KIP-599)."""

from collections import Counter
from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.topics.mutation_quota import charge_mutations
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_QUOTA_ERRORS = 3


def handle(call: KafkaCall) -> None:
    call.start(_add_all(call))


async def _add_all(call: KafkaCall) -> None:
    names = Counter(topic.name for topic in call.request.topics)
    requested = {topic.name: topic for topic in call.request.topics}
    checked_count = 0
    results = []
    for name, topic in requested.items():
        error = None
        try:
            if names[name] > 1:
                raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{name}' is named twice")
            checked_count += await _add(call, topic, checked_count)
        except RequestError as failure:
            error = failure.detached()
        results.append({"name": name, **result_errors.fields(error)})
    call.answer({"results": results})


async def _add(call: KafkaCall, requested: Any, checked_count: int) -> int:
    """Add partitions to a topic, or only check that it is possible.

    checked_count: partitions that other topics of the request would get, and do not have.
    Returns the number of partitions that this topic and its companions would get, and do not have.
    """
    assignment = (
        None if requested.assignments is None else [assignment.broker_ids for assignment in requested.assignments]
    )
    topics = call.broker.topics
    added = topics.check_partitions(requested.name, requested.count, assignment, checked_count)
    if call.request.validate_only:
        return added
    present = topics.existing(requested.name).partition_count
    charge_mutations(call, requested.count - present, strict_from=_QUOTA_ERRORS)
    await topics.add_partitions(call.caller, requested.name, requested.count, assignment)
    return 0
