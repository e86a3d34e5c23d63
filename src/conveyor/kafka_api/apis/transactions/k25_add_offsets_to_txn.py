"""AddOffsetsToTxn (key 25): adds the partition of a group's offsets to a producer's transaction.

v2 PRODUCER_FENCED (KIP-588) · v3 flexible · v4 TRANSACTION_ABORTABLE (KIP-890).
"""

from conveyor.kafka_api.apis.transactions import fenced_producers
from conveyor.kafka_api.apis.transactions.reserved_ids import check_not_reserved
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity

_PRODUCER_FENCED = 2


def handle(call: KafkaCall) -> None:
    call.start(_add(call))


async def _add(call: KafkaCall) -> None:
    request, error = call.request, None
    producer = ProducerIdentity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    try:
        check_not_reserved(request.transactional_id)
        await call.broker.coordinators.transactional_offsets.add_group(
            call.caller, request.transactional_id, producer, request.group_id
        )
    except RequestError as failure:
        error = failure.detached()
    call.answer({"error_code": fenced_producers.code(error, call.header.api_version, _PRODUCER_FENCED)})
