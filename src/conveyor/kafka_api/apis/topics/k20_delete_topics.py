"""DeleteTopics (key 20). v4 flexible · v5 error messages, quota errors (KIP-599) · v6 by name or by id."""

from collections import Counter
from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.topics.mutation_quota import charge_mutations
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import key_of_id

_BY_ID = 6
_QUOTA_ERRORS = 5


def handle(call: KafkaCall) -> None:
    call.start(_delete_all(call))


async def _delete_all(call: KafkaCall) -> None:
    if call.header.api_version >= _BY_ID:
        requested = [(topic.name, topic.topic_id) for topic in call.request.topics]
    else:
        requested = [(name, None) for name in call.request.topic_names]
    keys = [(name, key_of_id(topic_id)) for name, topic_id in requested]
    counts, distinct = Counter(keys), dict(zip(keys, requested, strict=True))
    call.answer({"responses": [await _delete(call, *topic, counts[key]) for key, topic in distinct.items()]})


async def _delete(call: KafkaCall, name: str | None, topic_id: Any, times_named: int) -> dict[str, Any]:
    topics = call.broker.topics
    error = None
    try:
        if (name is None) == (topic_id is None):
            raise RequestError(ErrorKind.INVALID_REQUEST, "give either the topic's name or its id")
        if times_named > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{name or topic_id}' is named twice")
        if name is None:
            name = call.broker.metadata.image.names_by_id.get(topic_id)
        else:
            topic = call.broker.metadata.image.topics.get(name)
            topic_id = None if topic is None else topic.topic_id
        if name is None:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        charge_mutations(call, len(topics.existing(name).partitions), strict_from=_QUOTA_ERRORS)
        await topics.delete(call.caller, name)
    except RequestError as failure:
        error = failure.detached()
    return {"name": name, "topic_id": topic_id, **result_errors.fields(error)}
