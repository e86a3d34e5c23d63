"""A batch whose producer has lost sight of an earlier one: until when the leader asks for both, in order."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.records.checked_batch import own_batch
from conveyor.replication import sequence_gaps
from conveyor.replication.roles import Leader
from conveyor.replication.sequence_gaps import PATIENCE_MS
from tests.unit.log.logs import NOW_MS, idempotent_batch
from tests.unit.replication.parts import EPOCH, Owner

ONE, TWO = NodeId(1), NodeId(2)
OUT_OF_ORDER, AGAIN = ErrorKind.OUT_OF_ORDER_SEQUENCE, ErrorKind.NOT_ENOUGH_REPLICAS


def role(epoch: int = 0, *, isr: tuple[NodeId, ...] = (ONE, TWO), min_isr: int = 1) -> Leader:
    return Leader(leader=ONE, epoch=LeaderEpoch(EPOCH + 1 + epoch), isr=isr, replicas=(ONE, TWO), min_isr=min_isr)


def new_leader(sequences: int = 1) -> Owner:
    """A leader of two replicas that has no batch of an earlier leader, and so many of the producer."""
    owner = Owner()
    owner.partition.assume(role())
    for sequence in range(sequences):
        append(owner, sequence)
    return owner


def append(owner: Owner, sequence: int, at_ms: int = 0, *, producer_id: int = 7, epoch: int = 0) -> ErrorKind | None:
    """Append a batch of one record. Returns why it is refused."""
    content = idempotent_batch(sequence, b"v", producer_id=producer_id, epoch=epoch)
    try:
        owner.partition.append(own_batch(content), NOW_MS + at_ms)
    except RequestError as error:
        return error.kind
    return None


def test_leader_that_has_taken_every_batch_refuses_a_gap_for_good() -> None:
    assert append(new_leader(), 2) is OUT_OF_ORDER


def test_new_leader_asks_for_a_batch_that_the_earlier_one_may_have_been_sent() -> None:
    owner = new_leader()
    owner.partition.assume(role(1))
    assert append(owner, 2) is AGAIN
    assert append(owner, 1) is None
    assert append(owner, 2) is None


def test_first_batches_of_a_new_producer_epoch_may_be_missing_too() -> None:
    owner = new_leader()
    owner.partition.assume(role(1))
    assert append(owner, 1, epoch=1) is AGAIN
    assert append(owner, 0, epoch=1) is None
    assert append(owner, 1, epoch=1) is None


def test_sequence_from_before_is_no_gap() -> None:
    owner = new_leader(sequences=9)
    owner.partition.assume(role(1))
    assert append(owner, 1) is OUT_OF_ORDER


def test_leader_whose_broker_is_the_only_replica_misses_no_batch() -> None:
    owner = Owner()
    append(owner, 0)
    owner.partition.assume(Leader(leader=ONE, epoch=LeaderEpoch(EPOCH + 1), isr=(ONE,)))
    assert append(owner, 2) is OUT_OF_ORDER


@pytest.mark.parametrize("loses", ["replica", "lease"])
def test_batch_that_was_refused_for_a_while_may_come_again(loses: str) -> None:
    owner = new_leader()
    if loses == "replica":
        owner.partition.assume(role(isr=(ONE,), min_isr=2))
        with pytest.raises(RequestError):
            owner.partition.term.check_replicas()
    else:
        owner.partition.assume(role(isr=(ONE,)))
        owner.holds_lease = False
        assert append(owner, 1) is ErrorKind.NOT_LEADER
        owner.holds_lease = True
    owner.partition.assume(role())
    assert append(owner, 2) is AGAIN


def test_missing_batch_counts_as_lost_after_a_while() -> None:
    owner = new_leader()
    owner.partition.assume(role(1))
    assert [append(owner, 2, at_ms) for at_ms in (0, PATIENCE_MS - 1, PATIENCE_MS, 9 * PATIENCE_MS)] == [
        AGAIN, AGAIN, OUT_OF_ORDER, OUT_OF_ORDER,
    ]  # fmt: skip
    assert append(owner, 1) is None
    assert append(owner, 3, 9 * PATIENCE_MS) is AGAIN  # Another gap.


def test_clock_that_steps_back_makes_no_gap_last() -> None:
    owner = new_leader()
    owner.partition.assume(role(1))
    assert [append(owner, 2, at_ms) for at_ms in (0, -1)] == [AGAIN, OUT_OF_ORDER]


def test_producers_with_gaps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_gaps, "_MAX_PRODUCERS", 2)
    owner = new_leader()
    producers = (11, 12, 13)
    for producer_id in producers:
        append(owner, 0, producer_id=producer_id)
    owner.partition.assume(role(1))
    for producer_id in producers:
        assert append(owner, 2, producer_id=producer_id) is AGAIN
    assert [append(owner, 2, PATIENCE_MS, producer_id=producer_id) for producer_id in reversed(producers)] == [
        OUT_OF_ORDER, OUT_OF_ORDER, AGAIN,
    ]  # fmt: skip
