"""OffsetCommit (key 8). v5 without retention time · v6 leader epoch · v7 static members · v8 flexible ·
v9 the consumer protocol of KIP-848 · v10 topic ids."""

from conveyor.groups.group_commands import CommitOffsets
from conveyor.groups.replies import Committed
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.groups.offset_commits import RequestedOffsets
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_MEMBER_EPOCHS = 9
_TOPIC_IDS = 10


def handle(call: KafkaCall) -> None:
    """Commit the offsets of existing partitions; answer the others with UNKNOWN_TOPIC."""
    request = call.request
    offsets = RequestedOffsets(call, by_id=call.header.api_version >= _TOPIC_IDS)
    command = CommitOffsets(
        group_id=request.group_id,
        generation_id=getattr(request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1)),
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=offsets.to_commit,
        knows_member_epochs=call.header.api_version >= _MEMBER_EPOCHS,
        connection=call.caller.connection_id,
    )
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish, offsets)))


def _finish(call: KafkaCall, offsets: RequestedOffsets, reply: Committed | RequestError) -> None:
    code = result_errors.code_by_id if call.header.api_version >= _TOPIC_IDS else result_errors.code
    call.answer({"topics": offsets.results(reply, code)})
