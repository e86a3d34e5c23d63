"""InitProducerId (key 22): an id for an idempotent producer, or the id and epoch of a transactional id, whose earlier
producer is fenced and whose open transaction is aborted.

v2 flexible · v3 a producer may send its id and epoch (KIP-360) · v4 PRODUCER_FENCED (KIP-588) · v6 two-phase commit,
which is refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED).
"""

from typing import Any

from conveyor.kafka_api.apis.transactions import fenced_producers
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.transactions.transaction_commands import InitializeProducer

_NO_ID = -1
_NO_EPOCH = -1
_PRODUCER_FENCED = 4


def handle(call: KafkaCall) -> None:
    call.start(_init(call))


async def _init(call: KafkaCall) -> None:
    producer = ProducerIdentity(ProducerId(_NO_ID), ProducerEpoch(_NO_EPOCH))
    error = None
    try:
        producer = await _producer(call)
    except RequestError as failure:
        error = failure
    code = fenced_producers.code(error, call.api_version, _PRODUCER_FENCED)
    call.answer({"error_code": code, "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch})


async def _producer(call: KafkaCall) -> ProducerIdentity:
    request = call.request
    if request.transactional_id == "":
        raise RequestError(ErrorKind.INVALID_REQUEST, "the transactional id is empty")
    known_id = getattr(request, "producer_id", _NO_ID)
    known_epoch = getattr(request, "producer_epoch", _NO_EPOCH)
    if (known_id == _NO_ID) != (known_epoch == _NO_EPOCH):
        raise RequestError(ErrorKind.INVALID_REQUEST, "give a producer id and its epoch, or neither")
    if request.transactional_id is None:
        return ProducerIdentity(await call.broker.producer_ids.allocate(), ProducerEpoch(0))
    expected = None if known_id == _NO_ID else ProducerIdentity(ProducerId(known_id), ProducerEpoch(known_epoch))
    reply = await call.broker.transactions.initialize(_command(call, request, expected))
    return reply.producer


def _command(call: KafkaCall, request: Any, expected: ProducerIdentity | None) -> InitializeProducer:
    return InitializeProducer(
        transactional_id=request.transactional_id,
        timeout_ms=round(request.transaction_timeout.total_seconds() * 1000),
        expected=expected,
        enable_two_phase_commit=getattr(request, "enable2_pc", False),
        keep_prepared=getattr(request, "keep_prepared_txn", False),
        connection=call.connection_number,
    )
