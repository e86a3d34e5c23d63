"""The bytes of the metadata log: round trips, limits, and errors for damaged bytes."""

import contextlib
import zlib
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.cluster import metadata_log
from conveyor.cluster.changes import Change, SubscriptionPut, TopicPut, fold, whole_image
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.cluster.metadata_log import (
    HEAD_PATH,
    MAX_ENTRY_BYTES,
    LogEntry,
    LogHead,
    chunk_path,
    decode_chunk,
    decode_controller_epoch,
    decode_entry,
    decode_head,
    encode_entry,
    encode_head,
    encode_snapshot,
    entry_path,
)
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId
from tests.unit.cluster.image_strategies import ENTRIES

HEAD = LogHead(seq=7, snapshot=5, chunks=1, batch=UUID(int=3))
BATCH = UUID(int=7)


def subscription(name: str, document: str) -> SubscriptionPut:
    return SubscriptionPut(name=name, subscription_id=UUID(int=1), topic_id=UUID(int=2), document=document)


def noise(length: int, seed: int = 1) -> str:
    """Return text that compresses to no less than about three quarters."""
    return Random(seed).randbytes(length // 2).hex()


def read_back(chunks: list[bytes]) -> list[Change]:
    return [change for number, chunk in enumerate(chunks) for change in decode_chunk(chunk_path(1, number), chunk)]


@pytest.mark.slow
@given(ENTRIES, st.integers(1, 2**31))
def test_entry_is_read_back(changes: tuple[Change, ...], epoch: int) -> None:
    entry = LogEntry(controller_epoch=epoch, batch=BATCH, changes=changes)
    assert decode_entry(1, encode_entry(entry)) == entry


@given(ENTRIES)
def test_snapshot_is_read_back(changes: tuple[Change, ...]) -> None:
    assert tuple(read_back(encode_snapshot(changes))) == changes


def test_head_is_read_back() -> None:
    assert decode_head(encode_head(HEAD)) == HEAD


def test_paths_sort_as_their_numbers() -> None:
    assert sorted(map(entry_path, (9, 10, 123_456_789_012))) == list(map(entry_path, (9, 10, 123_456_789_012)))
    assert chunk_path(5, 10) == "/log/s/000000000005/000000000010"


def test_large_entry_is_compressed() -> None:
    entry = LogEntry(controller_epoch=1, batch=BATCH, changes=(subscription("s", "x" * (1 << 20)),))
    content = encode_entry(entry)
    assert len(content) < 10_000
    assert decode_entry(1, content) == entry


def test_entry_beyond_the_limit_is_refused() -> None:
    with pytest.raises(RequestError, match="the limit is 524288: divide it") as refused:
        encode_entry(
            LogEntry(controller_epoch=1, batch=BATCH, changes=(subscription("s", noise(4 * MAX_ENTRY_BYTES)),))
        )
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


def test_entry_that_could_not_be_unpacked_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compressed size is within the limit."""
    monkeypatch.setattr(metadata_log, "_MAX_UNPACKED_BYTES", 100_000)
    with pytest.raises(RequestError):
        encode_entry(LogEntry(controller_epoch=1, batch=BATCH, changes=(subscription("s", "x" * 100_000),)))


def test_entry_with_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(RequestError, match="not Unicode") as refused:
        encode_entry(LogEntry(controller_epoch=1, batch=BATCH, changes=(subscription("\ud800", ""),)))
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.slow
def test_snapshot_is_divided_into_parts_within_the_limit() -> None:
    changes = [subscription(str(number), noise(50_000, number)) for number in range(100)]
    chunks = encode_snapshot(changes)
    assert len(chunks) > 2
    assert max(map(len, chunks)) <= MAX_ENTRY_BYTES
    assert read_back(chunks) == changes


def test_snapshot_is_divided_into_parts_that_can_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "_MAX_UNPACKED_BYTES", 100_000)
    changes = [subscription(str(number), "x" * 30_000) for number in range(10)]
    assert read_back(encode_snapshot(changes)) == changes


def test_snapshot_of_nothing_has_one_part() -> None:
    assert read_back(encode_snapshot([])) == []
    assert len(encode_snapshot([])) == 1


def test_one_change_beyond_the_limit_is_a_part_of_its_own() -> None:
    changes = [subscription("a", "x"), subscription("b", noise(4 * MAX_ENTRY_BYTES)), subscription("c", "x")]
    chunks = encode_snapshot(changes)
    assert read_back(chunks) == changes
    assert sum(len(chunk) > MAX_ENTRY_BYTES for chunk in chunks) == 1


def test_ten_thousand_partitions_take_few_parts() -> None:
    nodes = (NodeId(0), NodeId(1), NodeId(2))
    partitions = tuple(PartitionImage(nodes[number % 3], LeaderEpoch(5), nodes, nodes) for number in range(100))
    puts = [TopicPut(name=f"topic-{n}", topic_id=uuid4(), config={}, partitions=partitions) for n in range(100)]
    image = fold(ClusterImage(), puts, 1)
    chunks = encode_snapshot(whole_image(image))
    assert image.partition_count == 10_000
    assert len(chunks) <= 2
    assert max(map(len, chunks)) <= MAX_ENTRY_BYTES
    assert fold(ClusterImage(), read_back(chunks), 1) == image


BOMB = zlib.compress(b"[" + b" " * (80 << 20) + b"]")
DAMAGED = [
    b"",
    b"{",
    b"null",
    b"7",
    b'{"changes": 7}',
    b'[{"change": "of a later version"}]',
    b'[{"change": "topic", "name": "t"}]',
    b'{"controller_epoch": 1, "changes": [{"change": "topic_removed", "name": 5}]}',
    b"\xff\xfe",
    b"x",
    b"x\x9c",
    zlib.compress(b"[]")[:-1],
    zlib.compress(b"[]") + b"more",
    zlib.compress(b"not JSON"),
    BOMB,
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_entry_is_a_failure_that_names_its_node(content: bytes) -> None:
    with pytest.raises(StorageFailure, match="node /log/e/000000000005 is damaged"):
        decode_entry(5, content)


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_part_is_a_failure_that_names_its_node(content: bytes) -> None:
    with pytest.raises(StorageFailure, match="node /log/s/000000000005/000000000000 is damaged"):
        decode_chunk(chunk_path(5, 0), content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"seq": "7", "snapshot": 5, "chunks": 1, "batch": "00000000-0000-0000-0000-000000000003"}',
        b'{"seq": 7, "snapshot": 5, "chunks": 1, "batch": "3"}',
        b'{"seq": 7, "snapshot": 8, "chunks": 1, "batch": "00000000-0000-0000-0000-000000000003"}',
        b'{"seq": 7, "snapshot": -1, "chunks": 1, "batch": "00000000-0000-0000-0000-000000000003"}',
        b'{"seq": 7, "snapshot": 5, "chunks": 0, "batch": "00000000-0000-0000-0000-000000000003"}',
    ],
)
def test_damaged_head_is_a_failure_that_names_its_node(content: bytes) -> None:
    with pytest.raises(StorageFailure, match=f"node {HEAD_PATH} is damaged"):
        decode_head(content)


@pytest.mark.parametrize("content", [b"", b"x", b"1.5", b'"1"', b"\xff"])
def test_damaged_controller_epoch_is_a_failure_that_names_its_node(content: bytes) -> None:
    assert decode_controller_epoch(b"17") == 17
    with pytest.raises(StorageFailure, match="node /controller-epoch is damaged"):
        decode_controller_epoch(content)


@pytest.mark.slow
@given(ENTRIES, st.data())
def test_no_flipped_bit_is_more_than_a_failure(changes: tuple[Change, ...], data: st.DataObject) -> None:
    content = bytearray(encode_entry(LogEntry(controller_epoch=1, batch=BATCH, changes=changes)))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(StorageFailure):
        decode_entry(1, bytes(content))
