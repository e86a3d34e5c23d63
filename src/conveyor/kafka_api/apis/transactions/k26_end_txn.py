"""EndTxn (key 26): commits or aborts a transaction. v2 PRODUCER_FENCED (KIP-588) · v3 flexible ·
v4 TRANSACTION_ABORTABLE · v5 raises the producer's epoch with each transaction (KIP-890).

The response is sent when the decision is committed; the markers follow.
"""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.transactions import fenced_producers
from conveyor.kafka_api.apis.transactions.reserved_ids import check_not_reserved
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.transactions.transaction_commands import EndTransaction
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION

_PRODUCER_FENCED = 2
_EPOCH_BUMP = 5


def handle(call: KafkaCall) -> None:
    call.start(_end(call))


async def _end(call: KafkaCall) -> None:
    request = call.request
    command = EndTransaction(
        transactional_id=request.transactional_id,
        producer=ProducerIdentity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)),
        commit=request.committed,
        transaction_version=EPOCH_BUMPING_VERSION if call.header.api_version >= _EPOCH_BUMP else 0,
        connection=call.caller.connection_id,
    )
    try:
        check_not_reserved(request.transactional_id)
        producer = (await call.broker.coordinators.transactions.ask(call.caller, command)).producer
    except RequestError as error:
        return call.answer({"error_code": fenced_producers.code(error, call.header.api_version, _PRODUCER_FENCED)})
    call.answer({"error_code": result_errors.NONE} | producer._asdict())
