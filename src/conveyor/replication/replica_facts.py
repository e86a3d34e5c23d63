"""The facts that a data directory knows about its replicas: the content of its file `replica-checkpoint`.

    {"version": 0, "incarnations": [...], "cache_id": "...", "is_clean": false, "replicas": [[...], ...]} <CRC-32C>

The files of a log cannot tell that the log, or its end, is missing. This file can: it lists every replica that was ever
used here, by topic id, with a lower bound of its high watermark. See docs/decisions/trusted-replicas.md.
"""

from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import TopicId

NAME = "replica-checkpoint"
_VERSION = 0

_Offset = Annotated[int, msgspec.Meta(ge=0)]


class ReplicaKey(NamedTuple):
    """One replica: a topic may be deleted and created again, so its name does not identify it."""

    topic_id: TopicId
    partition: int


class ReplicaFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts that are certain about one replica.

    high_watermark: at most the partition's. flushed_offset: at most that, and everything below it is on the disk.
    is_unflushed: records may have been committed before they were on this disk, because of `flush.policy=os`.
    log_start_offset: at most the log's, and on the disk.
    """

    topic_id: UUID
    partition: _Offset
    high_watermark: _Offset = 0
    flushed_offset: _Offset = 0
    is_unflushed: bool = False
    log_start_offset: _Offset = 0

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(TopicId(self.topic_id), self.partition)


class DirectoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    incarnations: under which this directory has registered or tried to, oldest first; see `BrokerImage`. The one that
    the image shows is among them, unless another directory has registered since.
    cache_id: the page cache that may hold what is not on the disk; see `BrokerPorts`. is_clean: the last stop has
    flushed all logs.
    """

    version: int = _VERSION
    incarnations: tuple[str, ...] = ()
    cache_id: str = ""
    is_clean: bool = False
    replicas: tuple[ReplicaFacts, ...] = ()


class _Version(msgspec.Struct):
    version: int


def encode_facts(facts: DirectoryFacts) -> bytes:
    """Return the text of the file; see `checked_file`."""
    return msgspec.json.encode(facts)


def decode_facts(text: bytes) -> DirectoryFacts | None:
    """Return the facts, or None if the text is damaged. Raises StorageFailure for a newer version."""
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version > _VERSION:
            raise StorageFailure(f"{NAME} has version {version}: start a newer broker")
        return msgspec.json.decode(text, type=DirectoryFacts)
    except msgspec.MsgspecError:
        return None
