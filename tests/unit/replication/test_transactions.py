"""Markers on a leader, and the last stable offset on the way from an open to a committed transaction."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import CheckedBatch, own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.roles import Follower
from conveyor.replication.transactions import aborted_transactions, append_marker, last_stable_offset
from tests.unit.log.logs import NOW_MS
from tests.unit.replication.parts import Owner, batch, followed


def sent(sequence: int, producer_id: int = 7) -> CheckedBatch:
    """A batch of a transaction."""
    return own_batch(
        encode_batch(
            [(NOW_MS, None, b"v", ())],
            attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        )
    )  # fmt: skip


def marker(epoch: int = 1, coordinator_epoch: int = 0, *, commits: bool = False) -> TransactionMarker:
    return TransactionMarker(producer_id=7, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, commits=commits)


def test_transaction_holds_the_last_stable_offset_until_its_marker_is_committed() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.append(sent(0), NOW_MS)
    owner.partition.append(batch(b"b"), NOW_MS)
    assert last_stable_offset(owner.partition) == 0
    owner.settle()
    assert (owner.partition.term.high_watermark, last_stable_offset(owner.partition)) == (3, 1)
    info = append_marker(owner.partition, marker(), 2, NOW_MS)
    assert info is not None
    assert (info.first_offset, last_stable_offset(owner.partition)) == (3, 1)
    owner.settle()
    assert last_stable_offset(owner.partition) == 4
    assert aborted_transactions(owner.partition, 0, 4) == [(7, 1, 3, 4)]


def test_repeated_marker_is_not_appended() -> None:
    owner = Owner()
    owner.partition.append(sent(0), NOW_MS)
    assert append_marker(owner.partition, marker(), 2, NOW_MS) is not None
    assert append_marker(owner.partition, marker(), 2, NOW_MS) is None
    assert owner.partition.log.log_end_offset == 2


@pytest.mark.parametrize(
    ("refused", "version", "kind"),
    [
        (marker(epoch=0, coordinator_epoch=1), 2, ErrorKind.INVALID_PRODUCER_EPOCH),
        (marker(epoch=0, coordinator_epoch=0), 1, ErrorKind.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_old_markers_are_refused(refused: TransactionMarker, version: int, kind: ErrorKind) -> None:
    owner = Owner()
    owner.partition.append(sent(0), NOW_MS)
    append_marker(owner.partition, marker(epoch=0, coordinator_epoch=1, commits=True), 1, NOW_MS)
    owner.partition.append(sent(1), NOW_MS)
    with pytest.raises(RequestError) as error:
        append_marker(owner.partition, refused, version, NOW_MS)
    assert error.value.kind is kind
    assert owner.partition.log.log_end_offset == 3


def test_only_a_leader_appends_markers() -> None:
    owner = Owner()
    owner.partition.assume(Follower(leader=None, epoch=LeaderEpoch(4)))
    with pytest.raises(RequestError) as error:
        append_marker(owner.partition, marker(), 2, NOW_MS)
    assert error.value.kind is ErrorKind.NOT_LEADER


def test_deletion_may_pass_an_open_transaction() -> None:
    owner = Owner()
    owner.partition.append(sent(0), NOW_MS)
    owner.partition.append(batch(b"a", b"b"), NOW_MS)
    owner.settle()
    owner.partition.log.start.trim(2).run()
    assert last_stable_offset(owner.partition) == 2


def test_follower_settles_with_the_leaders_high_watermark() -> None:
    owner = Owner()
    owner.partition.append(sent(0), NOW_MS)
    append_marker(owner.partition, marker(), 2, NOW_MS)
    owner.partition.write()
    owner.partition.assume(Follower(leader=None, epoch=LeaderEpoch(4)))
    assert last_stable_offset(owner.partition) == 0
    followed(owner.partition).follow(2, 0)
    assert not owner.partition.log.producers.transactions.undecided
    assert last_stable_offset(owner.partition) == 2
