"""The requests of transactional clients over Kafka's protocol. Every function raises Disconnected and RequestError."""

from conveyor.kernel.ids import ProducerIdentity
from simulation.doors.kafka_requests import SpeaksKafka, check_code, committed_position, identity_of
from simulation.ledger import Place

Taken = tuple[str, ProducerIdentity]
"""A transactional id, and the identity that the client has for it."""


async def add_partition(door: SpeaksKafka, taken: Taken, place: Place) -> None:
    """Let a partition take part in the transaction (AddPartitionsToTxn)."""
    body = {
        "v3_and_below_transactional_id": taken[0],
        "v3_and_below_producer_id": taken[1].producer_id,
        "v3_and_below_producer_epoch": taken[1].producer_epoch,
        "v3_and_below_topics": [{"name": place[0], "partitions": [place[1]]}],
    }
    response = await door.kafka(24, 3, body)
    check_code(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


async def add_offsets(door: SpeaksKafka, taken: Taken, group: str) -> None:
    """Let the offsets of a group take part in the transaction (AddOffsetsToTxn)."""
    response = await door.kafka(25, 4, _named(taken) | {"group_id": group})
    check_code(response.error_code)


async def commit_offset_in_transaction(
    door: SpeaksKafka, taken: Taken, group: str, place: Place, offset: int, *, adds: bool
) -> None:
    """Commit an offset of a group in the transaction (TxnOffsetCommit). adds: the group may be new in it."""
    body = {"group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None}
    topics = {"topics": [committed_position(place, offset)]}
    response = await door.kafka(28, 5 if adds else 4, _named(taken) | body | topics)
    check_code(response.topics[0].partitions[0].error_code)


async def end_transaction(door: SpeaksKafka, taken: Taken, *, commits: bool, bumps: bool) -> ProducerIdentity:
    """Commit or abort (EndTxn). bumps: raises the epoch (KIP-890). Returns the identity for the next transaction."""
    response = await door.kafka(26, 5 if bumps else 4, _named(taken) | {"committed": commits})
    check_code(response.error_code)
    return identity_of(response) if bumps else taken[1]


def _named(taken: Taken) -> dict[str, object]:
    return {"transactional_id": taken[0], **taken[1]._asdict()}
