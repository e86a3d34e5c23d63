"""A lake: Parquet files partitioned by topic and day, and the checkpoint of the job that writes them.

    <lake>/topic=flights/day=2013-01-01/part-...parquet
    <lake>/_spark_metadata/            the committed files: `commit_log`
    <lake>/_bad/                       records whose payloads do not match the schema, as a lake within the lake
    <lake>/_conveyor/lake.json         the lake's id, path, cluster, topics and schema
    <lake>/_conveyor/checkpoint/       the offsets that were archived; contains the lake's id too
    <lake>/_conveyor/lock              held by the job that writes

With a missing checkpoint, an older one, or that of another lake, Spark would silently skip or repeat batches. Such a
lake is refused.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from uuid import uuid4

import msgspec

from pyspark_conveyor.lake.batch_numbers import check_same_time
from pyspark_conveyor.lake.commit_log import LOG_DIRECTORY, CommitLog
from pyspark_conveyor.lake.delta_log import DeltaLog
from pyspark_conveyor.payloads.payload_schema import PayloadSchema
from pyspark_conveyor.pipeline_errors import PipelineError

_OWN = "_conveyor"


LakeFormat = Literal["parquet", "delta"]
"""The logs that may list the committed files: Spark's, or Delta's."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `lake.json`. schema: of the payloads, None if the lake has raw records only."""

    lake_id: str
    path: str
    cluster_id: str
    topics: tuple[str, ...]
    format: LakeFormat = "parquet"
    schema: PayloadSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """An open lake: its directory, its checkpoint, all its topics, and the schema of their payloads, if it has one."""

    path: Path
    checkpoint: Path
    topics: tuple[str, ...]
    is_new: bool
    lake_id: str
    format: LakeFormat = "parquet"
    schema: PayloadSchema | None = None

    @property
    def log(self) -> CommitLog | DeltaLog:
        """The list of the lake's files."""
        return lake_log(self.path, self)

    @property
    def bad_records(self) -> Path:
        """The directory of records whose payloads do not match the schema."""
        return bad_records_path(self.path)


@contextmanager
def open_lake(
    path: Path, cluster_id: str, topics: Sequence[str], lake_format: LakeFormat | None = None
) -> Iterator[Lake]:
    """Open or create a lake, and lock out other writers. Topics can be added but not removed.

    lake_format: None is that of the lake, for a new one Parquet.
    Raises PipelineError: not a lake, in use, not writable, moved, of another cluster, or with a wrong checkpoint.
    """
    path = path.resolve()
    own = path / _OWN
    try:
        is_new = _begins_new(path, own)
        own.mkdir(parents=True, exist_ok=True)
        lock = (own / "lock").open("w")
    except OSError as error:
        raise PipelineError(
            f"{path} cannot be written ({error.strerror}): choose another directory with --to"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PipelineError(
                f"another job writes to {path} now: wait for it, or choose another directory"
            ) from error
        if is_new:
            yield _make(path, own, cluster_id, topics, lake_format or "parquet")
        else:
            yield _resume(path, cluster_id, topics, lake_format)


def lake_log(path: Path, lake: Manifest | Lake) -> CommitLog | DeltaLog:
    """Return the log of a lake at a path."""
    if lake.format == "parquet":
        return CommitLog(path)
    return DeltaLog(path, lake.lake_id, lake.schema)


def bad_records_path(lake: Path) -> Path:
    return lake / "_bad"


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a lake, None for a directory that has none. Raises PipelineError if it cannot be read."""
    file = path / _OWN / "lake.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Manifest) if file.exists() else None
    except (OSError, msgspec.MsgspecError) as error:
        raise PipelineError(f"{path} cannot be read as a lake ({error}): restore its _conveyor/lake.json") from error


def pin_schema(lake: Lake, schema: PayloadSchema) -> Lake:
    """Return an open lake with another schema, which its manifest has from now on."""
    manifest = read_manifest(lake.path)
    assert manifest is not None, "an open lake has a manifest"
    bad_records_path(lake.path).mkdir(exist_ok=True)
    _write_manifest(lake.path, msgspec.structs.replace(manifest, schema=schema))
    return replace(lake, schema=schema)


def _begins_new(path: Path, own: Path) -> bool:
    if (own / "lake.json").exists():
        return False
    other_files = [file.name for file in path.iterdir() if file.name != _OWN] if path.exists() else []
    if other_files:
        raise PipelineError(f"{path} holds other files ({other_files[0]}): choose an empty directory with --to")
    return True


def _make(path: Path, own: Path, cluster_id: str, topics: Sequence[str], lake_format: LakeFormat) -> Lake:
    lake_id = str(uuid4())
    checkpoint = own / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "lake-id").write_text(lake_id)
    names = tuple(dict.fromkeys(topics))
    _write_manifest(
        path, Manifest(lake_id=lake_id, path=str(path), cluster_id=cluster_id, topics=names, format=lake_format)
    )
    return Lake(path=path, checkpoint=checkpoint, topics=names, is_new=True, lake_id=lake_id, format=lake_format)


def _resume(path: Path, cluster_id: str, topics: Sequence[str], lake_format: LakeFormat | None) -> Lake:
    manifest = read_manifest(path)
    assert manifest is not None, "a lake that is not new has a manifest"
    if manifest.path != str(path):
        raise PipelineError(
            f"{path} was made as {manifest.path}, a path that Spark's commit log contains: move it back,"
            " or archive into an empty directory instead"
        )
    checkpoint = path / _OWN / "checkpoint"
    marker = checkpoint / "lake-id"
    remedy = f"archive into an empty directory instead, or restore {checkpoint} as it was"
    if not marker.exists():
        raise PipelineError(f"the checkpoint of {path} is missing, so the archived offsets are unknown: {remedy}")
    if marker.read_text() != manifest.lake_id:
        raise PipelineError(f"the checkpoint in {path} belongs to another lake: {remedy}")
    if lake_format not in (None, manifest.format):
        raise PipelineError(f"{path} has the format {manifest.format}, not {lake_format}: choose another directory")
    log = lake_log(path, manifest)
    if any((checkpoint / "commits").glob("[0-9]*")) and log.last_batch() is None:
        directory = path / (LOG_DIRECTORY if manifest.format == "parquet" else "_delta_log")
        raise PipelineError(f"{directory}, the list of committed files, is missing: {remedy}")
    check_same_time(checkpoint, log.last_batch(), path)
    if manifest.cluster_id != cluster_id:
        raise PipelineError(
            f"{path} archives cluster {manifest.cluster_id}, this one is {cluster_id}: choose another directory"
        )
    all_topics = tuple(dict.fromkeys([*manifest.topics, *topics]))
    if all_topics != manifest.topics:
        _write_manifest(path, msgspec.structs.replace(manifest, topics=all_topics))
    return Lake(
        path=path,
        checkpoint=checkpoint,
        topics=all_topics,
        is_new=False,
        lake_id=manifest.lake_id,
        format=manifest.format,
        schema=manifest.schema,
    )


def _write_manifest(path: Path, manifest: Manifest) -> None:
    replacement = path / _OWN / "lake.json.new"
    replacement.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    replacement.replace(path / _OWN / "lake.json")
