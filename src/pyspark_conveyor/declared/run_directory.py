"""The checkpoint directory of a pipeline.

    <checkpoint>/pipeline.json     what the checkpoint belongs to: the pipeline, its cluster, its sources and sinks
    <checkpoint>/queries/<sink>/   Spark's checkpoint of each query
    <checkpoint>/progress.json     how far the pipeline is, for other processes
    <checkpoint>/lock              held by the process that runs the pipeline
    <checkpoint>/stop              asks that process to stop after the present micro-batch

With the checkpoint of another pipeline, Spark would skip or repeat records without an error. It is refused.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from uuid import uuid4

import msgspec

from pyspark_conveyor.declared.pipeline_spec import PipelineSpec, SinkSpec, SourceSpec
from pyspark_conveyor.lake.batch_numbers import check_same_time
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.connectors import Connector

_MANIFEST, _PROGRESS, _LOCK, _STOP = "pipeline.json", "progress.json", "lock", "stop"
_TABLE_OWNER = "_conveyor/pipeline"
_POLL_S = 0.1


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the pipeline of a checkpoint. has_begun: queries were started, so that the rest is fixed.

    connector: what reads the topics. Each connector stores the offsets in a form of its own.
    """

    pipeline_id: str
    has_begun: bool = False
    name: str
    cluster_id: str
    connector: Connector = Connector.CONVEYOR
    sources: dict[str, SourceSpec]
    sinks: dict[str, SinkSpec]


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a query. records: that it has read in this run. The rates are in records per second, of the last
    micro-batch.
    """

    batch: int = -1
    records: int = 0
    input_rate: float = 0.0
    processing_rate: float = 0.0


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run. The times are in seconds since the epoch. error: why it failed, "" if it did not."""

    name: str
    pid: int
    state: Literal["running", "stopping", "finished", "stopped", "failed"]
    started_s: float
    updated_s: float
    queries: dict[str, QueryProgress]
    error: str = ""


class RunDirectory:
    """The directory of a running pipeline; `open_run` makes it."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self._path, self._manifest = path, manifest

    def query_checkpoint(self, sink: str) -> Path:
        return self._path / "queries" / sink

    def begin(self) -> None:
        """Fix what the checkpoint belongs to, before the first query starts."""
        self._manifest = msgspec.structs.replace(self._manifest, has_begun=True)
        _write_manifest(self._path, self._manifest)

    def write_progress(self, progress: RunProgress) -> None:
        _replace(self._path / _PROGRESS, msgspec.json.encode(progress))

    def is_stop_requested(self) -> bool:
        return (self._path / _STOP).exists()

    def bind_table(self, sink: str, table: Path) -> None:
        """Let the directory of a table belong to this checkpoint.

        Spark's file sink passes over batches whose numbers a directory already has, and repeats them if it has lost
        them. Raises PipelineError for a directory of another checkpoint.
        """
        owner, identity = table / _TABLE_OWNER, f"{self._manifest.pipeline_id} {sink}"
        has_batches = any((self.query_checkpoint(sink) / "commits").glob("[0-9]*"))
        if owner.exists():
            if owner.read_text() != identity:
                raise PipelineError(f"{table} belongs to another checkpoint: choose an empty directory")
            if has_batches and not (table / "_spark_metadata").exists():
                raise PipelineError(f"{table / '_spark_metadata'}, the list of its files, is missing: restore it")
            numbers = [int(file.stem) for file in (table / "_spark_metadata").glob("[0-9]*")]
            check_same_time(self.query_checkpoint(sink), max(numbers, default=None), table)
            return
        if has_batches:
            raise PipelineError(f"{table}, which this pipeline has written to, is missing: restore it")
        if table.exists() and any(table.iterdir()):
            raise PipelineError(f"{table} holds other files: choose an empty directory")
        owner.parent.mkdir(parents=True, exist_ok=True)
        _replace(owner, identity.encode())


def check_checkpoint(spec: PipelineSpec, cluster_id: str) -> None:
    """Raise PipelineError if the checkpoint directory of a pipeline is that of another one, or holds other files."""
    _checked(_manifest_of(Path(spec.checkpoint)), spec, cluster_id)


@contextmanager
def open_run(spec: PipelineSpec, cluster_id: str) -> Iterator[RunDirectory]:
    """Open or create the checkpoint directory of a pipeline, and lock out other runs.

    Raises PipelineError: in use, not writable, not a checkpoint, or that of another pipeline.
    """
    path = Path(spec.checkpoint)
    try:
        _manifest_of(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK).open("w")
    except OSError as error:
        raise PipelineError(f"{path} cannot be written ({error.strerror}): choose another checkpoint") from error
    with lock:
        if not _try_lock(lock.fileno(), fcntl.LOCK_EX):
            raise PipelineError(f"the pipeline of {path} runs already: see 'conveyor pipeline status {path}'")
        (path / _STOP).unlink(missing_ok=True)
        # Another run may have made it while this one waited for the lock.
        manifest = _checked(_read_manifest(path), spec, cluster_id)
        _write_manifest(path, manifest)
        yield RunDirectory(path, manifest)


def read_progress(path: Path) -> tuple[RunProgress, bool]:
    """Return the progress of a checkpoint's last run, and whether it still runs. Raises PipelineError."""
    file = path / _PROGRESS
    if not file.exists():
        raise PipelineError(f"{path} is not the checkpoint of a pipeline that has run: name its file or its directory")
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunProgress), _is_locked(path)
    except msgspec.MsgspecError as error:
        raise PipelineError(f"{file} cannot be read: {error}") from error


def request_stop(path: Path, timeout_s: float) -> bool:
    """Ask a pipeline to stop after the present micro-batch, and wait. Returns False if it did not run.

    Raises PipelineError if it still runs after `timeout_s`.
    """
    read_progress(path)
    if not _is_locked(path):
        return False
    (path / _STOP).touch()
    deadline = time.monotonic() + timeout_s
    while _is_locked(path):
        if time.monotonic() > deadline:
            raise PipelineError(f"the pipeline still works on its micro-batch after {timeout_s:.0f} s; it will stop")
        time.sleep(_POLL_S)
    return True


def _checked(manifest: RunManifest | None, spec: PipelineSpec, cluster_id: str) -> RunManifest:
    """Return the manifest that a checkpoint has from now on. Raises PipelineError for a pipeline that does not fit."""
    if manifest is None or not manifest.has_begun:
        return RunManifest(
            pipeline_id=str(uuid4()) if manifest is None else manifest.pipeline_id,
            name=spec.name,
            cluster_id=cluster_id,
            connector=spec.connector,
            sources=dict(spec.sources),
            sinks=dict(spec.sinks),
        )
    remedy = f"choose another checkpoint, or undo the change ({spec.checkpoint})"
    if manifest.name != spec.name:
        raise PipelineError(f"the checkpoint belongs to pipeline '{manifest.name}', not '{spec.name}': {remedy}")
    if manifest.cluster_id != cluster_id:
        raise PipelineError(f"the checkpoint belongs to cluster {manifest.cluster_id}, not {cluster_id}: {remedy}")
    if manifest.connector is not spec.connector:
        before, after = manifest.connector.value, spec.connector.value
        raise PipelineError(f"the checkpoint was written with connector {before}, not {after}: {remedy}")
    if manifest.sources.keys() != spec.sources.keys():
        before, after = (", ".join(sorted(each)) for each in (manifest.sources, spec.sources))
        raise PipelineError(f"the sources of the checkpoint are {before}, those of the pipeline {after}: {remedy}")
    for name, source in spec.sources.items():
        _check_fields(f"source '{name}'", manifest.sources[name], source, _SOURCE_FIELDS, remedy)
    for name in spec.sinks.keys() & manifest.sinks.keys():
        _check_fields(
            f"sink '{name}'", manifest.sinks[name], spec.sinks[name], ("topic", "table", "lake", "stream_id"), remedy
        )
    return msgspec.structs.replace(manifest, sources=dict(spec.sources), sinks=manifest.sinks | dict(spec.sinks))


_SOURCE_FIELDS = ("topic", "value_format", "schema", "event_time", "watermark", "deduplicate")


def _check_fields(what: str, old: object, new: object, fields: tuple[str, ...], remedy: str) -> None:
    for field in fields:
        before, after = (" ".join(getattr(each, field).split()) for each in (old, new))
        if before != after:
            raise PipelineError(f"{what} has changed: {field} was {before!r} and is {after!r}: {remedy}")


def _manifest_of(path: Path) -> RunManifest | None:
    """Return what a directory belongs to; None if it is new. Raises PipelineError if it holds other files."""
    manifest = _read_manifest(path)
    if manifest is None and path.exists() and {file.name for file in path.iterdir()} - {_LOCK}:
        raise PipelineError(f"{path} holds other files: choose an empty directory for the checkpoint")
    return manifest


def _read_manifest(path: Path) -> RunManifest | None:
    file = path / _MANIFEST
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunManifest) if file.exists() else None
    except msgspec.MsgspecError as error:
        raise PipelineError(f"{file} cannot be read ({error}): restore it, or choose another checkpoint") from error


def _write_manifest(path: Path, manifest: RunManifest) -> None:
    _replace(path / _MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def _is_locked(path: Path) -> bool:
    with (path / _LOCK).open("a") as lock:
        return not _try_lock(lock.fileno(), fcntl.LOCK_SH)


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace(file: Path, content: bytes) -> None:
    replacement = file.with_name(f"{file.name}.new")
    replacement.write_bytes(content)
    replacement.replace(file)
