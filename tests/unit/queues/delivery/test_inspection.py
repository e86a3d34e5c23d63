"""Views of a subscription: a turn of the event loop reads a limited number of offsets, whatever compaction has left."""

from collections.abc import Collection

import pytest

from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.inspection import Peek
from conveyor.queues.queue_commands import Target
from conveyor.records.checked_batch import own_batch
from conveyor.records.message import Message
from tests.lying_batches import sealed
from tests.unit.log.test_record_source import batch, thinned
from tests.unit.queues.stage import Stage, subscription

AT_ONCE = 500


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that were read so far."""
    offsets: list[int] = []
    get = MessageSource.get

    def read(self: MessageSource, offset: int) -> Message | None:
        offsets.append(offset)
        return get(self, offset)

    monkeypatch.setattr(MessageSource, "get", read)
    return offsets


def append(stage: Stage, *batches: bytes) -> None:
    for content in batches:
        stage.messages.append(own_batch(content), stage.now_ms)
    stage.settle()


def thin(count: int, kept: Collection[int]) -> Stage:
    """A partition of so many batches of 1,000 records, thinned out by compaction."""
    stage = Stage(subscription())
    append(stage, *[thinned(batch(1_000), kept) for _ in range(count)])
    return stage


def test_peek_of_a_compacted_partition_reads_a_gap_once(reads: list[int]) -> None:
    stage = thin(10, (500, 501, 999))
    expected = [base + offset for base in range(0, 10_000, 1_000) for offset in (500, 501, 999)]
    assert [peeked.message.offset for peeked in stage.peek()] == expected
    assert len(reads) <= 2 * len(expected)


def test_peek_pauses_after_a_limited_number_of_reads(reads: list[int]) -> None:
    stage = thin(2, range(0, 1_000, 2))
    peek = Peek(1_000, stage.now_ms)
    search = peek.search(stage.queue, stage.source, stage.messages.term.high_watermark)
    counts: list[int] = []
    is_over = False
    while not is_over:
        reads.clear()
        is_over = search()
        counts.append(len(reads))
    assert [peeked.message.offset for peeked in peek.found] == [*range(0, 2_000, 2)]
    assert max(counts) <= AT_ONCE
    assert len(counts) < 10


def test_peek_pauses_after_a_few_large_batches(reads: list[int]) -> None:
    stage = Stage(subscription())
    append(stage, *[batch(1_000)] * 100)
    for base_offset in range(0, 100_000, 1_000):
        stage.queue.progress.settle(base_offset + 1, base_offset + 1_000)
    search = Peek(1_000, stage.now_ms).search(stage.queue, stage.source, 100_000)
    assert not search()
    assert 10 < len(reads) < AT_ONCE / 5


def test_peek_that_pauses_shows_no_message_that_is_settled_meanwhile() -> None:
    stage = thin(1, range(1_000))
    peek = Peek(1_000, stage.now_ms)
    search = peek.search(stage.queue, stage.source, 1_000)
    assert not search()
    stage.lease(1_000)
    stage.ack(*map(Target, range(900)))
    assert search()
    offsets = [peeked.message.offset for peeked in peek.found]
    assert offsets[-100:] == [*range(900, 1_000)]
    assert len(offsets) < 700


def test_partitions_share_the_limits_of_a_peek(reads: list[int]) -> None:
    stages = [thin(1, range(0, 1_000, 10)) for _ in range(10)]
    peek = Peek(650, stages[0].now_ms)
    pauses = 0
    for stage in stages:
        search = peek.search(stage.queue, stage.source, 1_000)
        while not peek.is_done and not search():
            pauses += 1
    assert len(peek.found) == 650
    assert pauses == len(reads) // AT_ONCE


def test_peek_pauses_after_many_partitions_without_messages() -> None:
    stage = Stage(subscription())
    peek = Peek(10, stage.now_ms)
    pauses = 0
    for _ in range(1_000):
        search = peek.search(stage.queue, stage.source, 0)
        while not search():
            pauses += 1
    assert pauses == 10
    assert not peek.is_done


def test_oldest_message_behind_a_gap_is_found_in_two_steps(reads: list[int]) -> None:
    stage = thin(1, (999,))
    oldest_ms = stage.oldest_ms()
    assert reads == [0, 999]
    assert [peeked.message.timestamp_ms for peeked in stage.peek()] == [oldest_ms]


def test_oldest_message_behind_many_batches_without_messages_is_estimated(reads: list[int]) -> None:
    stage = Stage(subscription())
    append(stage, batch(1))
    first_offset = stage.messages.term.high_watermark
    append(stage, *[sealed(b"", 1)] * 1_000)
    stage.queue.progress.settled.clear()
    stage.queue.progress.start_offset = first_offset
    reads.clear()
    assert stage.oldest_ms() is not None
    assert len(reads) <= 50


def test_counting_reads_no_message(reads: list[int]) -> None:
    stage = thin(3, (999,))
    reads.clear()
    assert stage.counts().unsettled == 3_000
    assert reads == []
