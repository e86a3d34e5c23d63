"""Leader epochs: where each began, where it ended, and that a log remembers it."""

from random import Random

import pytest
from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.log.leader_epochs import NAME, LeaderEpochs, load_leader_epochs, shared_end
from conveyor.records.batch import placed_prefix, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, batch, flush, idempotent_batch, open_topic_log

PATH = f"{DIRECTORY}/{NAME}"
AS_KAFKA = b"0\n3\n1 0\n3 10\n4 25\n"


def known() -> LeaderEpochs:
    return LeaderEpochs([(1, 0), (3, 10), (4, 25)])


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 25)), (4, (4, 99)), (5, (-1, -1)), (-1, (-1, -1))],
)
def test_end_of_an_epoch_is_the_beginning_of_the_next(epoch: int, answer: tuple[int, int]) -> None:
    assert known().end_of(epoch, 99) == answer


def test_end_of_is_not_known_to_an_empty_log() -> None:
    assert LeaderEpochs().end_of(0, 0) == (-1, -1)


@pytest.mark.parametrize(
    ("earlier", "end_offset", "shared"),
    [
        (((1, 0), (3, 10), (4, 25)), 99, 30),
        (((1, 0), (3, 10), (4, 25)), 27, 27),
        (((1, 0), (3, 10)), 99, 25),
        (((1, 0), (2, 5)), 99, 5),
        (((1, 0), (3, 10), (5, 12)), 99, 12),
        (((2, 0), (6, 10)), 99, 0),
        ((), 99, 0),
    ],
)
def test_shared_end_is_the_smaller_end_of_the_last_common_epoch(
    earlier: tuple[tuple[int, int], ...], end_offset: int, shared: int
) -> None:
    assert shared_end(earlier, end_offset, known(), 30) == shared


def test_nothing_is_shared_above_the_first_entry_without_a_common_epoch() -> None:
    assert shared_end([(0, 0), (1, 10)], 99, LeaderEpochs([(5, 40), (6, 50)]), 60) == 40
    assert shared_end([(0, 0)], 99, LeaderEpochs(), 0) == 0


def test_epochs_whose_first_records_were_removed_begin_where_the_leader_says() -> None:
    epochs = known()
    epochs.copy_from([(5, 32), (7, 35), (9, 44)])
    epochs.assign(7, 30, 40)
    assert epochs.entries == (*known().entries, (5, 32), (7, 35))
    epochs.skip(41, 44)
    assert epochs.latest == 7
    epochs.skip(41, 45)
    assert epochs.entries[-1] == (9, 44)


def test_epochs_of_a_leader_do_not_begin_inside_of_what_is_copied_nor_above_it() -> None:
    epochs = known()
    epochs.copy_from([(5, 2), (7, 60), (8, 61)])
    epochs.assign(7, 30, 40)
    assert epochs.entries == (*known().entries, (7, 30))
    epochs = known()
    epochs.copy_from([(8, 31)])
    epochs.assign(7, 30, 40)
    assert epochs.latest == 7


def test_assign_takes_only_newer_epochs() -> None:
    epochs = known()
    epochs.assign(4, 30)
    assert not epochs.is_dirty
    epochs.assign(6, 40)
    assert epochs.entries[-1] == (6, 40)
    assert epochs.is_dirty


def test_assign_forgets_epochs_that_have_no_record() -> None:
    epochs = known()
    epochs.assign(5, 25)
    assert epochs.entries == ((1, 0), (3, 10), (5, 25))
    assert epochs.end_of(4, 99) == (3, 25)


def test_epoch_that_began_without_a_record_is_known_to_a_log_of_an_older_broker() -> None:
    """Its file has only epochs with records."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    log.append(own_batch(batch(b"a")), 0, NOW_MS)
    log.close()
    disk.write_atomic(PATH, b"0\n1\n0 0\n")
    reopened = open_topic_log(disk)
    reopened.copying.begin_epoch(3)
    assert [reopened.leader_epochs.end_of(epoch, 1) for epoch in range(5)] == [(0, 1), (0, 1), (0, 1), (3, 1), (-1, -1)]


def test_cut_end_forgets_epochs_that_began_later() -> None:
    epochs = known()
    epochs.cut_end(25)
    assert epochs.entries == ((1, 0), (3, 10))


def test_cut_start_keeps_the_epoch_that_is_under_way() -> None:
    epochs = known()
    epochs.cut_start(12)
    assert epochs.entries == ((3, 12), (4, 25))


def test_file_is_as_kafka_writes_it_with_a_checksum() -> None:
    disk = MemoryDisk()
    assert known().encode() == AS_KAFKA + b"crc32c %08x\n" % crc32c(AS_KAFKA)
    disk.write_atomic(PATH, known().encode())
    loaded = load_leader_epochs(disk, DIRECTORY)
    assert loaded is not None
    assert loaded.entries == known().entries


@pytest.mark.parametrize("content", [b"", b"0\n2\n1 0\n", b"0\n1\nx y\n", b"0\n2\n3 0\n1 5\n", b"\xff"])
def test_damaged_file_is_as_good_as_none(content: bytes) -> None:
    disk = MemoryDisk()
    for checksum in (b"", b"crc32c %08x\n" % crc32c(content)):
        disk.write_atomic(PATH, content + checksum)
        assert load_leader_epochs(disk, DIRECTORY) is None


def test_file_without_a_checksum_is_damaged() -> None:
    disk = MemoryDisk()
    disk.write_atomic(PATH, AS_KAFKA)
    assert load_leader_epochs(disk, DIRECTORY) is None


def test_each_flipped_bit_is_noticed() -> None:
    disk, content = MemoryDisk(), known().encode()
    for bit in range(8 * len(content)):
        disk.write_atomic(PATH, content)
        disk.flip(PATH, bit // 8, bit % 8)
        assert load_leader_epochs(disk, DIRECTORY) is None, bit


def test_newer_file_is_not_guessed_at() -> None:
    disk = MemoryDisk()
    disk.write_atomic(PATH, b"1\n0\ncrc32c %08x\n" % crc32c(b"1\n0\n"))
    with pytest.raises(StorageFailure, match="newer broker"):
        load_leader_epochs(disk, DIRECTORY)


@pytest.mark.parametrize("ending", ["closed", "killed", "cut", "damaged"])
def test_log_remembers_its_epochs(ending: str) -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for epoch in (0, 0, 2, 5):
        log.append(own_batch(batch(b"a")), epoch, NOW_MS)
        flush(log)
    if ending == "closed":
        log.close()
    if ending == "cut":
        disk = disk.power_cut(Random(1))
    if ending == "damaged":
        disk.write_atomic(PATH, b"nonsense")
    assert open_topic_log(disk).leader_epochs.entries == ((0, 0), (2, 2), (5, 3))


@pytest.mark.parametrize("restarts", [1, 2, 3])
def test_epoch_without_a_record_is_forgotten_for_good_by_a_restart(restarts: int) -> None:
    """Later a leader of a lower epoch may fill its offsets."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    log.copying.begin_epoch(4)
    flush(log)
    log = open_topic_log(disk)
    content = batch(b"a")
    log.copying.append(placed_prefix(0, read_header(content), 3) + content[17:], 5, NOW_MS)
    log.write()
    for _ in range(restarts):
        log = open_topic_log(disk)
    assert log.leader_epochs.entries == ((3, 0),)


def test_epoch_keeps_its_start_after_a_second_kill() -> None:
    """The first recovery writes a snapshot of the producers, from which the second one reads on."""
    disk = MemoryDisk()
    topic = TopicSettings(segment_bytes=100)
    log = open_topic_log(disk, topic)
    flush(log)
    for sequence in range(3):
        log.append(own_batch(idempotent_batch(sequence, b"a")), 2, NOW_MS)
    log.write()
    for _ in range(3):
        assert open_topic_log(disk, topic).leader_epochs.entries == ((2, 0),)
