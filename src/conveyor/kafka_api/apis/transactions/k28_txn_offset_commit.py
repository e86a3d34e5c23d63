"""TxnOffsetCommit (key 28): commits offsets of a group in a producer's transaction. v2 leader epoch · v3 flexible, and
the member, so that it can be fenced (KIP-447) · v4 TRANSACTION_ABORTABLE · v5 the group takes part in the transaction,
without AddOffsetsToTxn (KIP-890) · v6 topic ids, and the errors of member epochs (KIP-1319).
"""

from conveyor.groups.group_commands import NO_GENERATION, NO_MEMBER, CommitOffsets
from conveyor.groups.replies import Committed
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.groups.offset_commits import RequestedOffsets
from conveyor.kafka_api.apis.transactions.reserved_ids import check_not_reserved
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity

_ABORTABLE = 4
_ADDS_GROUP = 5
_TOPIC_IDS = _MEMBER_EPOCHS = 6


def handle(call: KafkaCall) -> None:
    call.start(_commit(call))


async def _commit(call: KafkaCall) -> None:
    request = call.request
    offsets = RequestedOffsets(call, by_id=call.header.api_version >= _TOPIC_IDS)
    producer = ProducerIdentity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    command = CommitOffsets(
        group_id=request.group_id,
        generation_id=getattr(
            request, "generation_id_or_member_epoch", getattr(request, "generation_id", NO_GENERATION)
        ),
        member_id=getattr(request, "member_id", NO_MEMBER),
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=offsets.to_commit,
        knows_member_epochs=call.header.api_version >= _MEMBER_EPOCHS,
        producer=producer,
        connection=call.caller.connection_id,
    )
    reply: Committed | RequestError
    try:
        check_not_reserved(request.transactional_id)
        adds = call.header.api_version >= _ADDS_GROUP
        reply = await call.broker.coordinators.transactional_offsets.commit(
            call.caller, request.transactional_id, producer, command, adds=adds
        )
    except RequestError as error:
        reply = error.detached()
    call.answer({"topics": offsets.results(reply, lambda error: _code(error, call.header.api_version))})


def _code(error: RequestError | None, version: int) -> int:
    """Return the code of an error that clients of this version know. To older ones, a stale member epoch is an old
    generation.
    """
    if version >= _TOPIC_IDS:
        return result_errors.code_by_id(error)
    if error is not None and error.kind is ErrorKind.TRANSACTION_ABORTABLE and version < _ABORTABLE:
        return ERRORS[ErrorKind.INVALID_TXN_STATE].kafka_code
    if error is not None and error.kind is ErrorKind.STALE_MEMBER_EPOCH:
        return ERRORS[ErrorKind.ILLEGAL_GENERATION].kafka_code
    return result_errors.code(error)
