"""DescribeClientQuotas (key 48): the quotas of the entities that match (KIP-546). v1 flexible."""

from functools import partial
from typing import Any

from conveyor.cluster.quotas import Match, QuotaFilter
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_MATCHES = {0: Match.EXACT, 1: Match.DEFAULT, 2: Match.ANY}


def handle(call: KafkaCall) -> None:
    call.wait(call.start(_describe(call)).cancel)


async def _describe(call: KafkaCall) -> None:
    quotas, strict = call.broker.clients.quotas.quotas, call.request.strict
    try:
        filters = [_filter(component) for component in call.request.components]
        find = partial(quotas.matching, filters, strict=strict)
        entities = await call.broker.slices.in_thread(find, call.meter)
    except RequestError as error:
        return call.answer({"error_code": error.kafka_code, "error_message": error.message, "entries": None})
    entries = (
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "values": [{"key": key, "value": value} for key, value in quotas.entities[entity].items()],
        }
        for entity in entities
    )
    call.answer({"error_code": 0, "error_message": None, "entries": entries}, len(entities))


def _filter(component: Any) -> QuotaFilter:
    match = _MATCHES.get(component.match_type)
    if match is None:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"unknown match type {component.match_type}: use 0 to 2")
    return QuotaFilter(entity_type=component.entity_type, match=match, name=component.match)
