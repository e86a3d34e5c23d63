"""InitProducerId (key 22): an id for an idempotent producer, or the id and epoch of a transactional id, whose earlier
producer is fenced and whose open transaction is aborted.

v2 flexible · v3 a producer may send its id and epoch (KIP-360) · v4 PRODUCER_FENCED (KIP-588) · v6 two-phase commit
(KIP-939): a producer may keep its open transaction. It compares the id and epoch of the transaction with those that its
database has stored, and ends the transaction with its new ones.
"""

from typing import Any

from conveyor.kafka_api.apis.transactions import fenced_producers
from conveyor.kafka_api.apis.transactions.reserved_ids import check_not_reserved
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.transactions.transaction_commands import InitializeProducer
from conveyor.transactions.transaction_replies import ProducerInitialized

_NO_ID = -1
_NO_EPOCH = -1
_NO_PRODUCER = ProducerIdentity(ProducerId(_NO_ID), ProducerEpoch(_NO_EPOCH))
_PRODUCER_FENCED = 4


def handle(call: KafkaCall) -> None:
    call.start(_init(call))


async def _init(call: KafkaCall) -> None:
    initialized, error = ProducerInitialized(producer=_NO_PRODUCER), None
    try:
        initialized = await _initialized(call)
    except RequestError as failure:
        error = failure.detached()
    ongoing = initialized.ongoing or _NO_PRODUCER
    call.answer(
        {
            "error_code": fenced_producers.code(error, call.header.api_version, _PRODUCER_FENCED),
            "producer_id": initialized.producer.producer_id,
            "producer_epoch": initialized.producer.producer_epoch,
            "ongoing_txn_producer_id": ongoing.producer_id,
            "ongoing_txn_producer_epoch": ongoing.producer_epoch,
        }
    )


async def _initialized(call: KafkaCall) -> ProducerInitialized:
    request = call.request
    if request.transactional_id == "":
        raise RequestError(ErrorKind.INVALID_REQUEST, "the transactional id is empty")
    check_not_reserved(request.transactional_id)
    known_id = getattr(request, "producer_id", _NO_ID)
    known_epoch = getattr(request, "producer_epoch", _NO_EPOCH)
    if (known_id == _NO_ID) != (known_epoch == _NO_EPOCH):
        raise RequestError(ErrorKind.INVALID_REQUEST, "give a producer id and its epoch, or neither")
    if request.transactional_id is None:
        new = ProducerIdentity(await call.broker.cluster.producer_ids.allocate(), ProducerEpoch(0))
        return ProducerInitialized(producer=new)
    expected = None if known_id == _NO_ID else ProducerIdentity(ProducerId(known_id), ProducerEpoch(known_epoch))
    return await call.broker.coordinators.transactions.ask(call.caller, _command(call, request, expected))


def _command(call: KafkaCall, request: Any, expected: ProducerIdentity | None) -> InitializeProducer:
    return InitializeProducer(
        transactional_id=request.transactional_id,
        timeout_ms=round(request.transaction_timeout.total_seconds() * 1000),
        expected=expected,
        enable_two_phase_commit=getattr(request, "enable2_pc", False),
        keep_prepared=getattr(request, "keep_prepared_txn", False),
    )
