"""A lake's commit log, in the format of Spark's file sink, so that `spark.read.parquet` sees committed files only.

    <lake>/_spark_metadata/<batch>.compact    "v1", then a line of JSON for each file that the lake has after the batch

Every batch writes the whole list, and the newest list counts. A commit is therefore one rename, also one that replaces
files. The list before the newest stays for readers that have just found it.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlparse
from uuid import uuid4

import msgspec

from pyspark_conveyor.lake.lake_parts import LakePart
from pyspark_conveyor.pipeline_errors import PipelineError

LOG_DIRECTORY = "_spark_metadata"
_VERSION = "v1"
_SUFFIX = ".compact"
_URI_SAFE = "/=:~!$&'()*+,;@"


class CommittedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A line of the log, with Spark's names. path: a `file:` URI. modification_time: ms since 1970."""

    path: str
    size: int
    is_dir: bool = False
    modification_time: int
    block_replication: int = 1
    block_size: int = 33_554_432
    action: str = "add"


class CommitLog:
    """The log of one lake."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._directory = lake / LOG_DIRECTORY

    def last_batch(self) -> int | None:
        """Return the number of the last committed batch, None without one. Raises PipelineError: another's log."""
        return max(self._batches(), default=None)

    def files(self) -> list[CommittedFile]:
        """Return the committed files, in the order of their commits."""
        last = self.last_batch()
        return [] if last is None else self._read(last)

    def paths(self) -> list[str]:
        """Return the paths of the committed files, relative to the lake."""
        return [self.relative(file) for file in self.files()]

    def relative(self, file: CommittedFile) -> str:
        return Path(unquote(urlparse(file.path).path)).relative_to(self._lake).as_posix()

    def commit(self, batch: int, added: Sequence[LakePart]) -> None:
        """Commit a batch: add published files. A repeated batch replaces its former files."""
        before = max((number for number in self._batches() if number < batch), default=None)
        kept = [] if before is None else self._read(before)
        self._write(batch, [*kept, *self._entries(added)])
        for number in self._batches():
            if before is not None and number < before:
                self._path(number).unlink()

    def replace(self, removed: Iterable[str], added: Sequence[LakePart]) -> None:
        """Replace files, by their paths relative to the lake, in one step."""
        last, gone = self.last_batch(), set(removed)
        assert last is not None, "a lake without a batch has no files to replace"
        kept = [file for file in self._read(last) if self.relative(file) not in gone]
        self._write(last, [*kept, *self._entries(added)])

    def _batches(self) -> list[int]:
        names = [file.name for file in self._directory.glob("[0-9]*")] if self._directory.exists() else []
        if any(not name.endswith(_SUFFIX) for name in names):
            raise PipelineError(
                f"{self._directory} was written by Spark's own file sink: archive into an empty directory instead"
            )
        return [int(name.removesuffix(_SUFFIX)) for name in names]

    def _path(self, batch: int) -> Path:
        return self._directory / f"{batch}{_SUFFIX}"

    def _entries(self, parts: Sequence[LakePart]) -> list[CommittedFile]:
        files = [(self._lake / part.path, part) for part in parts]
        return [
            CommittedFile(
                path="file://" + quote(str(path), safe=_URI_SAFE),
                size=part.size_bytes,
                modification_time=path.stat().st_mtime_ns // 1_000_000,
            )
            for path, part in files
        ]

    def _read(self, batch: int) -> list[CommittedFile]:
        version, _, lines = self._path(batch).read_text().partition("\n")
        if version not in (_VERSION, ""):
            raise PipelineError(f"{self._path(batch)} has version {version}, known is {_VERSION}: use a newer conveyor")
        try:
            if not version:
                raise ValueError("it is empty")
            return [msgspec.json.decode(line, type=CommittedFile) for line in lines.splitlines()]
        except ValueError as error:
            raise PipelineError(f"{self._path(batch)} is damaged ({error}): restore it from a copy") from error

    def _write(self, batch: int, files: Sequence[CommittedFile]) -> None:
        self._directory.mkdir(exist_ok=True)
        replacement = self._directory / f".{uuid4()}.tmp"
        lines = [_VERSION, *(msgspec.json.encode(file).decode() for file in files)]
        with replacement.open("w") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(self._path(batch))
