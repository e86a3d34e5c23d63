"""Reading single messages out of batches, whatever became of these."""

from collections.abc import Collection
from typing import Any

import pytest
from crc32c import crc32c

from conveyor.kernel.errors import LogDamaged
from conveyor.kernel.ports import FileSlice
from conveyor.log import record_source as source_module
from conveyor.log.cache_share import CacheShare
from conveyor.log.log import Log
from conveyor.log.record_source import MessageSource, StillPacked, unpack_batch
from conveyor.records import compression, record
from conveyor.records.batch import CONTROL, CRC_START, HEADER, HEADER_BYTES, MAGIC_END, BatchHeader, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.record import Header, decode_records, encode_batch, rebuild_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.lying_batches import raw_record, sealed
from tests.unit.log.compaction.test_key_compaction import FILLING, compacted, filled, keyed
from tests.unit.log.logs import DIRECTORY, NOW_MS, open_topic_log

CODECS = [compression.NONE, compression.LZ4, compression.ZSTD]
HEADERS: tuple[Header, ...] = (("n", b"1"), ("n", None))


def opened(topic: TopicSettings | None = None, disk: MemoryDisk | None = None) -> tuple[Log, MessageSource]:
    log = open_topic_log(disk or MemoryDisk(), topic)
    return log, MessageSource("t", 3, log)


def append(log: Log, content: bytes) -> None:
    log.append(own_batch(content), 0, NOW_MS)
    log.write()


def batch(count: int, codec: int = compression.NONE) -> bytes:
    return encode_batch([(NOW_MS + n, b"k%d" % n, b"v%d" % n, HEADERS) for n in range(count)], codec=codec)


def thinned(content: bytes, kept: Collection[int]) -> bytes:
    """Return a batch with only these of its records, as compaction leaves it."""
    header = read_header(content)
    records = [kept_record for kept_record in decode_records(content) if kept_record.offset in kept]
    return rebuild_batch(header, records, header.base_timestamp, header.attributes)


def with_header(content: bytes, header: BatchHeader) -> bytes:
    changed = bytearray(HEADER.pack(*header)) + content[HEADER_BYTES:]
    changed[MAGIC_END:CRC_START] = crc32c(memoryview(changed)[CRC_START:]).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("codec", CODECS)
def test_every_message_can_be_read_in_any_order(codec: int) -> None:
    log, source = opened()
    append(log, batch(3, codec))
    append(log, batch(2, codec))
    for offset in (4, 0, 3, 2, 1, 0):
        message = source.get(offset)
        assert message is not None
        number = offset if offset < 3 else offset - 3
        assert (message.topic, message.partition, message.offset) == ("t", 3, offset)
        assert (message.key, message.value, message.headers) == (b"k%d" % number, b"v%d" % number, HEADERS)
        assert message.timestamp_ms == NOW_MS + number
    assert source.get(5) is None


@pytest.mark.parametrize("codec", CODECS)
def test_messages_can_be_read_when_their_content_was_let_go(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_MAX_CONTENT_BYTES", 1)
    monkeypatch.setattr(source_module, "_MAX_POSITIONS", 10)
    log, source = opened()
    for _ in range(6):
        append(log, batch(3, codec))
    for offset in (*range(18), *range(17, -1, -1)):
        message = source.get(offset)
        assert message is not None
        assert (message.offset, message.value) == (offset, b"v%d" % (offset % 3))


@pytest.mark.parametrize("codec", CODECS)
def test_holes_that_compaction_has_left_are_no_messages(codec: int) -> None:
    log, source = opened()
    append(log, thinned(batch(6, codec), (1, 2, 5)))
    found = [source.get(offset) for offset in range(6)]
    assert [each and each.offset for each in found] == [None, 1, 2, None, None, 5]


@pytest.mark.parametrize("codec", CODECS)
def test_hole_in_a_batch_costs_neither_a_read_nor_a_decode(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def read_record(*arguments: Any) -> Any:
        found = record.read_record(*arguments)
        decoded.append(found.offset)
        return found

    monkeypatch.setattr(source_module, "read_record", read_record)
    monkeypatch.setattr(source_module, "_MAX_CONTENT_BYTES", 1)
    log, source = opened()
    append(log, thinned(batch(1_000, codec), range(3, 1_000, 100)))
    append(log, thinned(batch(1_000, codec), range(5)))
    kept = [*range(3, 1_000, 100), *range(1_000, 1_005)]
    assert [offset for offset in range(2_000) if source.get(offset) is not None] == decoded == kept


def test_offsets_without_a_message_are_passed_at_once() -> None:
    log, source = opened()
    append(log, thinned(batch(6), [1, 4]))
    unreadable = batch(2, compression.LZ4)[:-1] + b"x"
    append(log, with_header(unreadable, read_header(unreadable)))
    append(log, batch(2))
    assert passed(source, 0) == 1
    assert passed(source, 2) == passed(source, 3) == 4
    assert passed(source, 5) == 6
    assert passed(source, 6) == 8
    log.start.trim(9)
    assert passed(source, 8) == 9


def passed(source: MessageSource, offset: int) -> int:
    assert source.get(offset, MAX_UNPACKED_BYTES) is None
    return source.following(offset)


def test_end_of_the_log_that_compaction_has_removed_costs_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log, source = opened()
    append(log, batch(20))
    log.compaction.cleaned_offset = 20
    reads: list[int] = []
    monkeypatch.setattr(log, "read", lambda offset, *_, **__: reads.append(offset))
    assert passed(source, 5) == 20
    assert [source.get(offset) for offset in range(5, 20)] == [None] * 15
    assert reads == [5]


def test_batch_that_was_compacted_meanwhile_is_read_anew() -> None:
    log, source = opened()
    content = batch(4)
    append(log, content)
    found = next(source.batches(0, 4, 1 << 20))
    source.open(*found)
    rebuilt = thinned(content, [2])
    again = source.open(read_header(rebuilt), found[1], rebuilt)
    assert source.message(again, 0).offset == 2
    assert again.header.records_count == 1


def test_offsets_that_compaction_has_removed_cost_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = filled(disk, *[keyed((b"a", FILLING)) for _ in range(20)])
    compacted(disk, log)
    reads: list[int] = []
    read = log.read

    def count(offset: int, *arguments: Any, **named: Any) -> FileSlice | None:
        reads.append(offset)
        return read(offset, *arguments, **named)

    monkeypatch.setattr(log, "read", count)
    source = MessageSource("t", 3, log)
    found = [offset for offset in range(log.log_end_offset) if source.get(offset) is not None]
    assert len(found) < 5
    assert len(reads) <= 2 * len(found) + 1


def test_brokers_own_marks_are_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    log, source = opened()
    content = batch(1)
    append(log, content)
    opened_batch = source.open(*next(source.batches(0, 1, 1 << 20)))
    opened_batch.header = opened_batch.header._replace(attributes=CONTROL)
    assert source.get(0) is None


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_in_a_sound_batch_is_no_message(codec: int) -> None:
    log, source = opened()
    packed = compression.compress(codec, b"\xff" * 40)
    header = read_header(batch(2, codec))
    header = header._replace(batch_length=HEADER_BYTES - 12 + len(packed))
    append(log, with_header(bytes(HEADER_BYTES) + packed, header))
    append(log, batch(1, codec))
    assert [source.get(offset, MAX_UNPACKED_BYTES) for offset in (0, 1)] == [None, None]
    message = source.get(2)
    assert message is not None


def test_append_time_is_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    log, source = opened(TopicSettings(message_timestamp_type="LogAppendTime"))
    append(log, batch(2))
    message = source.get(0)
    assert message is not None
    assert message.timestamp_ms == NOW_MS


def test_nothing_is_read_below_the_start_of_the_log() -> None:
    log, source = opened()
    append(log, batch(2))
    log.start.trim(1)
    assert source.get(0) is None
    assert source.get(1) is not None
    assert source.log_start_offset == 1


@pytest.mark.parametrize("codec", CODECS)
def test_sources_share_their_memory_equally(codec: int) -> None:
    share = CacheShare(90_000)
    sources: list[MessageSource] = []
    sizes: list[int] = []
    for _ in range(32):
        log, source = opened()
        for _ in range(20):
            append(log, batch(100, codec))
        source.join(share)
        sources.append(source)
        for offset in range(0, 2_000, 50):
            found = source.get(offset)
            assert found is not None
            assert found.value == b"v%d" % (offset % 100)
        sizes.append(sum(map(kept_bytes, sources)))
    least = max(map(kept_bytes, sources))  # The last batch of each is kept, however small the share is.
    assert all(size <= 2 * 90_000 + len(sources) * least for size in sizes)
    assert kept_bytes(sources[0]) == least < sizes[0] / 3
    for source in sources[1:]:
        source.leave()
    assert share.bytes == 90_000


def kept_bytes(source: MessageSource) -> int:
    return source._content_bytes + 8 * source._positions_count


def test_reading_a_batch_of_lying_offsets_decodes_one_record_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0

    def read_record(*arguments: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return record.read_record(*arguments)

    monkeypatch.setattr(source_module, "read_record", read_record)
    log, source = opened()
    append(log, sealed(b"".join(raw_record(1 << 30) for _ in range(200)), 200))
    assert [source.get(offset) for offset in range(200)] == [None] * 200
    assert decoded == 200


def test_batch_that_is_large_when_packed_is_not_unpacked_on_the_event_loop() -> None:
    log, source = opened()
    empty, record = compression.compress(compression.ZSTD, b""), compression.compress(compression.ZSTD, raw_record(0))
    append(log, sealed(b"", 1, codec=compression.ZSTD, packed=empty * 10_000 + record))
    with pytest.raises(StillPacked):
        source.get(0)
    assert source.get(0, MAX_UNPACKED_BYTES) is not None


def test_message_that_is_larger_than_its_topic_takes_is_not_read_into_memory() -> None:
    content = encode_batch([(NOW_MS, None, bytes(17 << 20), ()), (NOW_MS, None, b"v", ())], codec=compression.ZSTD)
    for max_message_bytes, is_read in ((1 << 20, False), (18 << 20, True)):
        log, source = opened(TopicSettings(max_message_bytes=max_message_bytes))
        append(log, content)
        assert (source.get(0, MAX_UNPACKED_BYTES) is not None) == is_read
        assert source.get(1) is not None


def test_batch_that_takes_long_is_unpacked_elsewhere() -> None:
    log, source = opened()
    for _ in range(2):
        append(log, encode_batch([(NOW_MS, None, bytes(6 << 20), ())], codec=compression.ZSTD))
    for offset in (0, 1, 0):
        with pytest.raises(StillPacked) as packed:
            source.get(offset)
        assert not source.has_content(packed.value.header)
        source.keep(unpack_batch(packed.value.header, packed.value.place))
        assert source.get(offset) is not None
    assert source.get(1, MAX_UNPACKED_BYTES) is not None


@pytest.mark.parametrize("codec", CODECS)
def test_batch_that_the_disk_has_changed_is_not_read(codec: int) -> None:
    """Neither the first time nor again: its positions are cached, its content is not."""
    content = batch(3, codec)
    log, source = opened(disk=(disk := MemoryDisk()))
    append(log, content)
    append(log, content)
    assert source.get(0) is not None
    assert source.get(3) is not None
    source._drop_content(source._batches[0])
    for start in (0, len(content)):
        disk.flip(f"{DIRECTORY}/{0:020}.log", start + HEADER_BYTES + 10, 3)
    with pytest.raises(LogDamaged, match="the batch at byte 0 of a segment"):
        source.get(0)
    assert source.get(3) is not None
    source.use(log)
    with pytest.raises(LogDamaged, match="the batch at offset 3 is damaged"):
        source.get(4)
    with pytest.raises(LogDamaged, match="the batch at offset 0 is damaged"):
        next(source.batches(0, 6, 1 << 20))
    with pytest.raises(LogDamaged):
        unpack_batch(read_header(content), FileSlice(disk.open(f"{DIRECTORY}/{0:020}.log"), 0, len(content)))


def test_content_of_a_large_batch_is_read_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_MAX_CONTENT_BYTES", 1)
    log, source = opened()
    for _ in range(2):
        append(log, encode_batch([(NOW_MS, None, bytes(source_module.SMALL_BYTES), ())]))
        assert source.get(log.log_end_offset - 1, MAX_UNPACKED_BYTES) is not None
    with pytest.raises(StillPacked) as packed:
        source.get(0)
    source.keep(unpack_batch(packed.value.header, packed.value.place))
    assert source.get(0) is not None
