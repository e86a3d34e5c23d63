"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664). v1 filter by duration
(KIP-994). Version 2, with a pattern, is not served yet."""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.transactions.transaction_commands import ListTransactions
from conveyor.transactions.transaction_value import TransactionState

_STATES = {state.kafka_name: state for state in TransactionState}


def handle(call: KafkaCall) -> None:
    call.start(_list(call))


async def _list(call: KafkaCall) -> None:
    request = call.request
    unknown = [name for name in request.state_filters if name not in _STATES]
    states = frozenset(_STATES[name] for name in request.state_filters if name in _STATES)
    command = ListTransactions(
        states=states,
        producer_ids=frozenset(request.producer_id_filters),
        min_duration_ms=getattr(request, "duration_filter", -1),
    )
    try:
        is_empty = bool(request.state_filters) and not states
        listed = [] if is_empty else await call.broker.coordinators.transactions.list_transactions(call.caller, command)
    except RequestError as error:
        return call.answer(
            {"error_code": result_errors.code(error), "unknown_state_filters": unknown, "transaction_states": []}
        )
    found = (
        {
            "transactional_id": transaction.transactional_id,
            "producer_id": transaction.producer.producer_id,
            "transaction_state": transaction.state.kafka_name,
        }
        for transaction in listed
    )
    body = {"error_code": result_errors.NONE, "unknown_state_filters": unknown, "transaction_states": found}
    call.answer(body, len(listed))
