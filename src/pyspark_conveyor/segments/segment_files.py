"""The files of partitions in a data directory: `<data-dir>/logs/<topic>-<partition>/<base offset, 20 digits>.log`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import SourceOptions

_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")
_SEGMENT = re.compile(r"\d{20}\.log")
_LOG_START = "log-start-offset"
_GAPS = ("cleaned-offset", "gap-offset")
_SWAP = "compaction-swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """One partition's segments, in order.

    log_start: the first offset that is not deleted. dense_from: compaction has removed no offset from here on.
    """

    topic: str
    partition: int
    log_start: int
    dense_from: int
    segments: tuple[Path, ...]


def find_partitions(options: SourceOptions) -> list[PartitionFiles]:
    """Return the partitions of the topics. Raises PipelineError: no data directory, or a topic that is not in it."""
    assert options.data_dir is not None
    logs = Path(options.data_dir) / "logs"
    if not logs.is_dir():
        raise PipelineError(f"{options.data_dir} is no data directory of a broker: it has no directory 'logs'")
    found = []
    for directory in sorted(logs.iterdir()):
        name = _DIRECTORY.fullmatch(directory.name)
        if name is not None and directory.is_dir() and _is_wanted(options, name["topic"]):
            found.append(_partition(directory, name["topic"], int(name["partition"])))
    _check_all_found(options, {each.topic for each in found})
    return sorted(found, key=lambda each: (each.topic, each.partition))


def _partition(directory: Path, topic: str, partition: int) -> PartitionFiles:
    segments = sorted(path for path in directory.iterdir() if _SEGMENT.fullmatch(path.name))
    if (directory / _SWAP).exists():
        raise PipelineError(
            f"compaction replaces files of {directory} now: run the query again; if the broker was killed, start it"
        )
    return PartitionFiles(
        topic=topic,
        partition=partition,
        log_start=max(int(segments[0].stem) if segments else 0, _offset(directory / _LOG_START)),
        dense_from=max(_offset(directory / name) for name in _GAPS),
        segments=tuple(segments),
    )


def _offset(file: Path) -> int:
    """Return the offset that a broker has noted, or 0 if there is no file. Raises PipelineError."""
    try:
        offset, checksum = file.read_bytes().split()
        if checksum != b"%08x" % crc32c(offset):
            raise ValueError("the checksum does not match")
        return int(offset)
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise PipelineError(f"{file} holds no offset: the directory is damaged") from error


def _is_wanted(options: SourceOptions, topic: str) -> bool:
    if options.topic_pattern is not None:
        return not topic.startswith("__") and re.fullmatch(options.topic_pattern, topic) is not None
    return topic in options.topics


def _check_all_found(options: SourceOptions, found: set[str]) -> None:
    missing = [topic for topic in options.topics if topic not in found]
    if missing or not found:
        wanted = missing[0] if missing else options.topic_pattern
        raise PipelineError(f"no partition of '{wanted}' is in {options.data_dir}{os.sep}logs")
