"""EndTxn (key 26): commits or aborts a transaction. v2 PRODUCER_FENCED (KIP-588) · v3 flexible · v4 as v3.

The response is sent when the decision is committed; the markers follow. Version 5, which raises the producer's epoch
with each transaction (KIP-890), is not served yet.
"""

from conveyor.kafka_api.apis.transactions import fenced_producers
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.transactions.transaction_commands import EndTransaction

_PRODUCER_FENCED = 2


def handle(call: KafkaCall) -> None:
    call.start(_end(call))


async def _end(call: KafkaCall) -> None:
    request, error = call.request, None
    command = EndTransaction(
        transactional_id=request.transactional_id,
        producer=ProducerIdentity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)),
        commit=request.committed,
        transaction_version=0,
        connection=call.connection_number,
    )
    try:
        await call.broker.transactions.end(command)
    except RequestError as failure:
        error = failure
    call.answer({"error_code": fenced_producers.code(error, call.api_version, _PRODUCER_FENCED)})
