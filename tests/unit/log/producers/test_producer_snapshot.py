"""Snapshots of producer state: what is written is read, and what does not check out is as good as none."""

import struct

import pytest
from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import Offset
from conveyor.log.producers.producer_snapshot import (
    encode_snapshot,
    load_newest_snapshot,
    remove_snapshots,
    snapshot_offsets,
)
from conveyor.log.producers.producer_state import ProducerState
from conveyor.records.batch import TRANSACTIONAL, read_header
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, idempotent_batch, segment_file


def empty_state() -> ProducerState:
    return ProducerState(max_producers=10, expiration_ms=1000)


def state_of(*producer_ids: int) -> ProducerState:
    state = empty_state()
    for number, producer_id in enumerate(producer_ids):
        content = idempotent_batch(number, b"v", producer_id=producer_id, epoch=3)
        state.record(read_header(content), Offset(number), 1000 + number)
    return state


def disk_with(**contents: bytes) -> MemoryDisk:
    """Snapshots by offset: `at_20=...`."""
    disk = MemoryDisk()
    for name, content in contents.items():
        disk.write_atomic(segment_file(int(name.removeprefix("at_")), "producers"), content)
    return disk


def test_snapshot_round_trips() -> None:
    state, loaded = state_of(5, 4, 5), empty_state()
    disk = disk_with(at_20=encode_snapshot(state.entries(), 6))
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 20) == (20, 6)
    assert list(loaded.entries()) == list(state.entries())


def test_snapshot_of_transactions_round_trips() -> None:
    state, loaded = state_of(5, 4), empty_state()
    for producer_id, offset in ((9, 30), (8, 31), (7, 32)):
        content = read_header(idempotent_batch(0, b"v", producer_id=producer_id, epoch=2))
        state.record(content._replace(attributes=TRANSACTIONAL), Offset(offset), 2000 + offset)
    marker = TransactionMarker(producer_id=8, producer_epoch=3, coordinator_epoch=6, commits=True)
    state.record_marker(marker, 33, 3000)
    disk = disk_with(at_40=encode_snapshot(state.entries()))
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 40).offset == 40
    assert loaded.entries() == state.entries()
    assert loaded.entries().opened == [(9, (30, 2030)), (7, (32, 2032))]
    assert (loaded.entries().undecided, loaded.entries().last_marker_offset) == ([(31, 33)], 33)
    assert loaded.entries().producers[-1] == (3, 3000, (), 6)


def test_snapshot_of_version_1_is_read() -> None:
    body = b"\0\1" + b"".join(
        struct.pack(">qhiiqqq", 5, 3, sequence, sequence, 10 + sequence, 10 + sequence, 1000 + sequence)
        for sequence in (0, 1)
    )
    loaded = empty_state()
    assert (
        load_newest_snapshot(disk_with(at_20=crc32c(body).to_bytes(4, "big") + body), DIRECTORY, loaded, 0, 20).offset
        == 20
    )
    assert list(loaded.entries()[0]) == [5]
    assert loaded.entries().producers[0] == (3, 1001, ((0, 0, 10, 10, 1000), (1, 1, 11, 11, 1001)), -1)


def test_remove_snapshots_keeps_the_one_that_the_active_segment_needs() -> None:
    disk = disk_with(at_1=b"", at_2=b"", at_3=b"", at_4=b"", at_5=b"")
    remove_snapshots(disk, DIRECTORY, keep=2, needed_at=2)
    assert snapshot_offsets(disk.list(DIRECTORY)) == [2, 4, 5]


def test_snapshot_of_nobody_counts() -> None:
    loaded = empty_state()
    assert (
        load_newest_snapshot(disk_with(at_20=encode_snapshot(empty_state().entries())), DIRECTORY, loaded, 0, 20).offset
        == 20
    )
    assert len(loaded) == 0


def test_load_takes_the_newest_at_or_below_the_limit() -> None:
    disk = disk_with(
        at_5=encode_snapshot(state_of(5).entries()),
        at_10=encode_snapshot(state_of(10).entries()),
        at_15=encode_snapshot(state_of(15).entries()),
    )
    loaded = empty_state()
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 14).offset == 10
    assert list(loaded.entries()[0]) == [10]


@pytest.mark.parametrize("position", [0, 4, 5, 6, -1])
def test_damaged_snapshot_is_passed_over(position: int) -> None:
    damaged = bytearray(encode_snapshot(state_of(10).entries()))
    damaged[position] ^= 1
    disk = disk_with(at_5=encode_snapshot(state_of(5).entries()), at_10=bytes(damaged))
    loaded = empty_state()
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 10).offset == 5
    assert list(loaded.entries()[0]) == [5]


@pytest.mark.parametrize("size", [0, 3, 5, 6, 30])
def test_cut_snapshot_is_as_good_as_none(size: int) -> None:
    loaded = empty_state()
    disk = disk_with(at_10=encode_snapshot(state_of(10).entries())[:size])
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 10).offset == 0
    assert len(loaded) == 0


def sealed(body: bytes) -> bytes:
    """Return a file with the right checksum."""
    return crc32c(body).to_bytes(4, "big") + body


def test_snapshot_of_version_2_has_no_leader_epoch() -> None:
    content, loaded = encode_snapshot(state_of(5, 4).entries(), 6), empty_state()
    disk = disk_with(at_20=sealed(b"\0\2" + content[10:]))
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 20) == (20, -1)
    assert list(loaded.entries()) == list(state_of(5, 4).entries())


MARKER_OFFSET, NOTHING = struct.pack(">q", -1), struct.pack(">i", 0)
PRODUCER = struct.pack(">qhqiB", 5, 0, 1000, -1, 0)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\0\1" + bytes(7), id="version 1, part of a batch"),
        pytest.param(b"\0\2", id="nothing"),
        pytest.param(b"\0\3\0", id="part of the leader epoch"),
        pytest.param(b"\0\2" + MARKER_OFFSET + NOTHING, id="no count"),
        pytest.param(b"\0\2" + MARKER_OFFSET + struct.pack(">i", 2**31 - 1) + NOTHING, id="huge count"),
        pytest.param(b"\0\2" + MARKER_OFFSET + NOTHING + struct.pack(">i", -1) + PRODUCER, id="negative count"),
        pytest.param(b"\0\2" + MARKER_OFFSET + NOTHING + NOTHING + PRODUCER[:-1], id="part of a producer"),
        pytest.param(b"\0\2" + MARKER_OFFSET + NOTHING + NOTHING + PRODUCER[:-1] + b"\1", id="no batch"),
        pytest.param(
            b"\0\2" + MARKER_OFFSET + struct.pack(">iqqq", 1, 7, 0, 0) + NOTHING + PRODUCER, id="unknown producer"
        ),
    ],
)
def test_snapshot_with_a_right_checksum_and_wrong_counts_is_passed_over(body: bytes) -> None:
    disk = disk_with(at_5=encode_snapshot(state_of(5).entries()), at_10=sealed(body))
    loaded = empty_state()
    assert load_newest_snapshot(disk, DIRECTORY, loaded, 0, 10).offset == 5
    assert loaded.entries() == state_of(5).entries()


def test_snapshot_of_a_newer_version_is_refused() -> None:
    body = (4).to_bytes(2, "big")
    disk = disk_with(at_10=crc32c(body).to_bytes(4, "big") + body)
    with pytest.raises(StorageFailure, match="newer than this broker"):
        load_newest_snapshot(disk, DIRECTORY, empty_state(), 0, 10)


def test_remove_snapshots_keeps_the_newest() -> None:
    disk = disk_with(at_1=b"", at_2=b"", at_3=b"")
    remove_snapshots(disk, DIRECTORY, keep=2)
    assert snapshot_offsets(disk.list(DIRECTORY)) == [2, 3]


def test_remove_snapshots_above_an_offset() -> None:
    disk = disk_with(at_1=b"", at_2=b"", at_3=b"")
    remove_snapshots(disk, DIRECTORY, above=2)
    assert snapshot_offsets(disk.list(DIRECTORY)) == [1, 2]


def test_snapshot_offsets_see_only_snapshots() -> None:
    names = [f"{5:020d}.producers", f"{6:020d}.log", f"{7:020d}.producers.new", "x.producers"]
    assert snapshot_offsets(names) == [5]
