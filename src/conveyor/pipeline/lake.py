"""A lake: Parquet files partitioned by topic and day, bound to the checkpoint that says how far they reach.

    <lake>/topic=flights/day=2013-01-01/part-...parquet
    <lake>/_spark_metadata/            which files count: Spark's commit log of the sink
    <lake>/_conveyor/lake.json         the lake's id, its path, its cluster and its topics
    <lake>/_conveyor/checkpoint/       how far the topics were read; holds the lake's id too
    <lake>/_conveyor/lock              held by the job that writes

A checkpoint that was lost or belongs to another lake would make Spark skip or repeat batches without a word, so it is
refused.
"""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from conveyor.pipeline.pipeline_errors import PipelineError

_OWN = "_conveyor"
_SINK_LOG = "_spark_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """An open lake: its directory, where its checkpoint is, and all topics it archives."""

    path: Path
    checkpoint: Path
    topics: tuple[str, ...]
    is_new: bool


@contextmanager
def open_lake(path: Path, cluster_id: str, topics: Sequence[str]) -> Iterator[Lake]:
    """Open or begin a lake, and keep others from writing to it. Topics may be added, never taken away.

    Raises PipelineError: not a lake, in use, not writable, moved, of another cluster, or its checkpoint does not fit.
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
        yield _make(path, own, cluster_id, topics) if is_new else _resume(path, own, cluster_id, topics)


def remove_leftovers(path: Path, counted: set[str]) -> None:
    """Remove what killed runs wrote and never committed, so that tools that do not know Spark's log see it as it is.

    counted: names of all files that were committed; a name holds a UUID, so that it says which file is meant
    wherever the lake is mounted. Call it only with the lake open, and its last batch done.
    """
    for each in path.glob("topic=*/day=*/*"):
        # Next to every file lies its checksum, under a hidden name.
        name = each.name.removeprefix(".").removesuffix(".crc")
        if name.startswith("part-") and name not in counted:
            each.unlink()


def _begins_new(path: Path, own: Path) -> bool:
    if (own / "lake.json").exists():
        return False
    strangers = [each.name for each in path.iterdir() if each.name != _OWN] if path.exists() else []
    if strangers:
        raise PipelineError(f"{path} holds other files ({strangers[0]}): choose an empty directory with --to")
    return True


def _make(path: Path, own: Path, cluster_id: str, topics: Sequence[str]) -> Lake:
    lake_id = str(uuid4())
    checkpoint = own / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "lake-id").write_text(lake_id)
    _write_manifest(path, lake_id, cluster_id, topics)
    return Lake(path=path, checkpoint=checkpoint, topics=tuple(topics), is_new=True)


def _resume(path: Path, own: Path, cluster_id: str, topics: Sequence[str]) -> Lake:
    manifest = json.loads((own / "lake.json").read_text())
    if manifest["path"] != str(path):
        raise PipelineError(
            f"{path} was made as {manifest['path']}, which Spark's log of its files names: move it back,"
            " or archive into an empty directory instead"
        )
    checkpoint = own / "checkpoint"
    marker = checkpoint / "lake-id"
    started_over = f"archive into an empty directory instead, or restore {checkpoint} as it was"
    if not marker.exists():
        raise PipelineError(
            f"the checkpoint of {path} is lost, and what was archived cannot be told from it: {started_over}"
        )
    if marker.read_text() != manifest["lake_id"]:
        raise PipelineError(f"the checkpoint in {path} belongs to another lake: {started_over}")
    if any((checkpoint / "commits").glob("[0-9]*")) and not (path / _SINK_LOG).exists():
        raise PipelineError(f"{path / _SINK_LOG} is lost, which says what files count: {started_over}")
    if manifest["cluster_id"] != cluster_id:
        raise PipelineError(
            f"{path} archives cluster {manifest['cluster_id']}, this one is {cluster_id}: choose another directory"
        )
    everything = list(dict.fromkeys([*manifest["topics"], *topics]))
    if everything != manifest["topics"]:
        _write_manifest(path, manifest["lake_id"], cluster_id, everything)
    return Lake(path=path, checkpoint=checkpoint, topics=tuple(everything), is_new=False)


def _write_manifest(path: Path, lake_id: str, cluster_id: str, topics: Sequence[str]) -> None:
    document = {"lake_id": lake_id, "path": str(path), "cluster_id": cluster_id, "topics": list(topics)}
    replacement = path / _OWN / "lake.json.new"
    replacement.write_text(json.dumps(document, indent=2) + "\n")
    replacement.replace(path / _OWN / "lake.json")
