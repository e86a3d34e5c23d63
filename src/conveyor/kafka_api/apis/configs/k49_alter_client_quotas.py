"""AlterClientQuotas (key 49): set and remove quotas (KIP-546), in force before the response is sent. v1 flexible."""

from collections import Counter
from typing import Any

from conveyor.cluster.quotas import MAX_PARTS, QuotaChange, QuotaEntity, checked_entity
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: KafkaCall) -> None:
    call.start(_alter_all(call))


async def _alter_all(call: KafkaCall) -> None:
    counts = Counter(map(_parts, call.request.entries))
    results = []
    async for entry in call.broker.slices.each(call.request.entries, lambda item: len(item.entity) + len(item.ops)):
        entity = _parts(entry)
        results.append(await _alter(call, entry, entity, counts[entity]))
    call.answer({"entries": results}, sum(len(entry.entity) for entry in call.request.entries))


async def _alter(call: KafkaCall, entry: Any, parts: QuotaEntity, count: int) -> dict[str, Any]:
    failure: RequestError | None = None
    try:
        if count > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, "an entity is named twice in one request")
        entity = checked_entity(parts)
        changes = [
            QuotaChange(key=operation.key, value=None if operation.remove else operation.value)
            for operation in entry.ops
        ]
        await call.broker.clients.quotas.alter(call.caller, entity, changes, check_only=call.request.validate_only)
    except RequestError as error:
        failure = error.detached()
    return {
        "error_code": result_errors.code(failure),
        "error_message": None if failure is None else failure.message,
        "entity": [
            {"entity_type": component.entity_type, "entity_name": component.entity_name} for component in entry.entity
        ],
    }


def _parts(entry: Any) -> QuotaEntity:
    """Return the sorted (type, name) pairs of an entry, without checking them. One too many is enough to refuse it."""
    pairs = ((component.entity_type, component.entity_name) for component in entry.entity[: MAX_PARTS + 1])
    return tuple(sorted(pairs, key=lambda pair: (pair[0], pair[1] or "")))
