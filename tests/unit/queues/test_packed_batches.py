"""Commands that read messages of several batches which a thread has to unpack, and of which the cache keeps one."""

from collections.abc import Callable
from typing import Any

import pytest

from conveyor.kernel.errors import ErrorKind, StorageFailure
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.log import record_source
from conveyor.log.record_source import SourceBatch
from conveyor.queues.delivery.deliveries import Deliveries
from conveyor.queues.queue_commands import LeasedMessage, MoveToDeadLetters, Redeliver, Redelivered, Reject, Target
from conveyor.records import compression
from conveyor.records.message import Message
from tests.unit.queues.model import kinds
from tests.unit.queues.stage import SUBSCRIPTION, Stage, subscription, target

MINE = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
LARGE = bytes(2 * record_source.SMALL_BYTES)


@pytest.fixture(autouse=True)
def _cache_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_source, "_MAX_CONTENT_BYTES", 1)


def stage_with(batches_count: int, **policy: Any) -> Stage:
    """Return a stage with batches of two messages of one key."""
    stage = Stage(subscription(**policy))
    for number in range(batches_count):
        key = b"%d" % number
        stage.publish((key, LARGE, ()), (key, b"", ()), codec=compression.ZSTD)
    return stage


def lease_all(stage: Stage) -> list[LeasedMessage]:
    leased: list[LeasedMessage] = []
    while stage.queue.has_messages:
        leased += stage.lease(1_000)
    return leased


def dead_letter_all(stage: Stage) -> tuple[int, ...]:
    """Return the offsets."""
    leased = lease_all(stage)
    offsets = tuple(lease.message.offset for lease in leased)
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=tuple(map(target, leased)), reason="bad"))
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=offsets))
    return offsets


def redeliver(stage: Stage, *offsets: int) -> Redelivered:
    return stage.ask(Redeliver(subscription=SUBSCRIPTION, offsets=offsets))


def count_unpacked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the offset of each batch that is unpacked from now on."""
    unpacked: list[int] = []
    keep = stage.source.keep

    def count(batch: SourceBatch) -> None:
        unpacked.append(batch.base_offset)
        assert len(unpacked) < 100, "batches are unpacked without end"
        keep(batch)

    monkeypatch.setattr(stage.source, "keep", count)
    return unpacked


def watch_reads(stage: Stage, monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    """Call a function before each message is read, with its offset."""
    get = stage.source.get

    def watched(offset: int) -> Message | None:
        before(offset)
        return get(offset)

    monkeypatch.setattr(stage.source, "get", watched)


def test_redelivery_unpacks_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_with(4)
    offsets = dead_letter_all(stage)
    unpacked = count_unpacked(stage, monkeypatch)
    reached: list[int] = []
    while left := offsets[sum(reached) :]:
        reached.append(redeliver(stage, *left).reached_count)
    assert (reached, unpacked) == ([2] * 4, [0, 2, 4, 6])
    assert (stage.counts().dead, stage.counts().available) == (0, 8)
    assert sorted(lease.message.offset for lease in lease_all(stage)) == list(offsets)


def test_redelivery_reads_a_few_megabytes_in_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(subscription())
    for _ in range(200):
        stage.publish((None, bytes(1 << 15), ()))
    offsets = dead_letter_all(stage)
    read: list[int] = []
    watch_reads(stage, monkeypatch, read.append)
    assert redeliver(stage, *offsets) == Redelivered(128, [])
    assert read == list(range(128))
    assert stage.counts().dead == 72


def test_redelivery_keeps_what_it_did_before_a_message_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(offset: int) -> None:
        if offset == 2:
            raise StorageFailure("the disk is gone")

    stage = Stage(subscription())
    stage.publish_plain(3)
    offsets = dead_letter_all(stage)
    watch_reads(stage, monkeypatch, fail)
    assert redeliver(stage, *offsets) == Redelivered(2, [])
    with pytest.raises(StorageFailure):
        redeliver(stage, 2)
    assert (stage.counts().dead, stage.lease_offsets()) == (1, [0, 1])


def test_batches_of_pending_messages_are_unpacked_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """For their keys, and to find the next messages."""
    stage = stage_with(4, ordering="key")
    assert not any(stage.ack_in_transaction(MINE, *map(target, lease_all(stage))))
    stage.restart()
    unpacked = count_unpacked(stage, monkeypatch)
    assert stage.lease_offsets() == []
    assert sorted({*unpacked}) == [0, 2, 4, 6]
    assert len(unpacked) <= 2 * 4
    stage.end_transaction(MINE, commits=True)
    assert sorted(lease.message.offset for lease in lease_all(stage)) == [1, 3, 5, 7]


def test_messages_that_are_not_scanned_are_not_read_to_be_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliveries, "is_full", property(lambda _: True))
    stage = stage_with(3)
    unpacked = count_unpacked(stage, monkeypatch)
    assert kinds(stage.nack(*map(Target, (0, 2, 5, 6)))) == [ErrorKind.LEASE_LOST] * 3 + [ErrorKind.UNKNOWN_MESSAGE]
    assert unpacked == []


def test_message_of_a_key_waits_for_all_pending_ones() -> None:
    """Two transactions may have messages of one key if the order was demanded later."""
    other = ProducerIdentity(ProducerId(8), ProducerEpoch(0))
    stage = Stage(subscription())
    stage.publish((b"k", b"", ()), (b"k", b"", ()))
    first, second = map(target, stage.lease(2))
    assert not any((*stage.ack_in_transaction(MINE, first), *stage.ack_in_transaction(other, second)))
    stage.set_subscriptions(subscription(ordering="key"))
    assert stage.lease_offsets() == []
    stage.end_transaction(MINE, commits=False)
    stage.pass_time(1)
    assert stage.lease_offsets() == []
    stage.end_transaction(other, commits=True)
    assert stage.lease_offsets() == [0]
