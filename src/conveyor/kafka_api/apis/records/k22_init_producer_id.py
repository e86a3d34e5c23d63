"""InitProducerId (key 22): an id for an idempotent producer. v2 flexible · v3 a producer may send its id and epoch
(KIP-360) · v6 two-phase commit. Transactional ids are refused, because transactions are not supported."""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_NO_ID = -1
_NO_EPOCH = -1


def handle(call: KafkaCall) -> None:
    call.start(_init(call))


async def _init(call: KafkaCall) -> None:
    try:
        producer_id, epoch = await _allocate(call)
        error = None
    except RequestError as failure:
        producer_id, epoch, error = _NO_ID, _NO_EPOCH, failure
    call.answer({"error_code": result_errors.code(error), "producer_id": producer_id, "producer_epoch": epoch})


async def _allocate(call: KafkaCall) -> tuple[int, int]:
    request = call.request
    if request.transactional_id == "":
        raise RequestError(ErrorKind.INVALID_REQUEST, "the transactional id is empty")
    if request.transactional_id is not None:
        raise RequestError(ErrorKind.TRANSACTIONS_UNSUPPORTED, "transactions are not offered by this broker")
    known_id = getattr(request, "producer_id", _NO_ID)
    known_epoch = getattr(request, "producer_epoch", _NO_EPOCH)
    if (known_id == _NO_ID) != (known_epoch == _NO_EPOCH):
        raise RequestError(ErrorKind.INVALID_REQUEST, "give a producer id and its epoch, or neither")
    return await call.broker.producer_ids.allocate(), 0
