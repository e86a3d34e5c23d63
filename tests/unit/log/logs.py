"""Small logs for tests: batches as producers send them, a log on a disk, and what can be read from it."""

from collections.abc import Sequence
from uuid import UUID

from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Disk
from conveyor.log.append_info import AppendInfo
from conveyor.log.compaction.compaction_plan import CompactionLimits
from conveyor.log.log import Log
from conveyor.log.log_parts import NOTHING_EXPECTED, ExpectedLog
from conveyor.log.log_probe import LogProbe
from conveyor.log.recovery.recovery import open_log
from conveyor.records import compression
from conveyor.records.batch import iterate_batches
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import decode_records, encode_batch
from conveyor.settings.tree import ProducerSettings, TopicSettings
from conveyor.testing.manual_clock import DEFAULT_START_MS

DIRECTORY = "logs/t-0"
NOW_MS = DEFAULT_START_MS
PRODUCER = 7
TOPIC_ID = TopicId(UUID(int=1))


def all_below(offset: int) -> CompactionLimits:
    """The limits of a compaction whose records and tombstones are all replicated."""
    return CompactionLimits(offset, offset)


def batch(*values: bytes, at_ms: int = NOW_MS, codec: int = compression.NONE) -> bytes:
    """A plain producer's batch, all records with one timestamp."""
    return encode_batch([(at_ms, None, value, ()) for value in values], codec=codec)


def idempotent_batch(sequence: int, *values: bytes, producer_id: int = PRODUCER, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    records = [(NOW_MS, None, value, ()) for value in values]
    return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


PAIR = TopicSettings(segment_bytes=2 * len(idempotent_batch(0, b"a")), index_interval_bytes=0)
"""Two batches of an idempotent producer, with one short record each, fill a segment."""


def open_topic_log(
    disk: Disk, topic: TopicSettings | None = None, probe: LogProbe | None = None, now_ms: int = NOW_MS,
    expected: ExpectedLog = NOTHING_EXPECTED,
) -> Log:  # fmt: skip
    """Open the one log that these tests use."""
    return open_log(
        disk, DIRECTORY, TOPIC_ID, topic or TopicSettings(), ProducerSettings(), probe or LogProbe(), now_ms, expected
    )


def allow_gaps(log: Log, offset: int) -> None:
    """Let offsets be missing below one offset, as a follower of a compacted log does."""
    job = log.copying.allow_gaps(offset)
    assert job is not None
    job.run()
    log.copying.complete_gaps(job)


def append(log: Log, content: bytes, now_ms: int = NOW_MS) -> AppendInfo:
    """Append and write one batch."""
    info = log.append(own_batch(content), 0, now_ms)
    log.write()
    return info


def flush(log: Log) -> None:
    """Write and flush, as the broker does it, on this thread."""
    log.write()
    job = log.flushes.begin()
    job.run()
    log.flushes.complete(job)


def read_bytes(log: Log, offset: int, max_bytes: int = 1 << 20) -> bytes:
    """What one read returns, as bytes; empty where there is nothing yet."""
    found = log.read(offset, max_bytes, log.written_offset, at_least_one=True)
    return b"" if found is None else found.file.read(found.position, found.length)


def records_of(content: bytes) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in whole batches."""
    return [
        (record.offset, record.value)
        for position, header in iterate_batches(content)
        for record in decode_records(content[position : position + header.size])
    ]


def contents(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record from the batch that holds an offset on, by as many reads as it takes."""
    found: list[tuple[int, bytes | None]] = []
    position: int = log.log_start_offset if offset is None else offset
    while content := read_bytes(log, position, max_bytes):
        found += records_of(content)
        assert found[-1][0] >= position, "a read goes on"
        position = found[-1][0] + 1
    return found


def values(log: Log) -> Sequence[bytes | None]:
    """Every value of the log; its offsets must be dense."""
    found = contents(log)
    assert [offset for offset, _ in found] == list(range(log.log_start_offset, log.written_offset))
    return [value for _, value in found]


def segment_file(base_offset: int, suffix: str = "log") -> str:
    """The path of one of the log's files."""
    return f"{DIRECTORY}/{base_offset:020d}.{suffix}"
