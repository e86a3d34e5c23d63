"""The directory of one partition. It belongs to one topic id, stored in its file `partition.metadata` as in Kafka.

    version: 0
    topic_id: <the id's 16 bytes in base64, URL-safe, without padding>
    crc32c: <CRC-32C of the bytes before this line, without their last line feed, in hexadecimal>

A start sets a directory of another topic aside. Without the checksum, one flipped bit of the id would take a log away
from its partition. Kafka and earlier versions write, and read, the first two lines only.

A topic may be deleted and created again while a thread or another process still works on the old topic's files, and the
new topic's directory has the same name. Every change of files therefore goes through `PartitionDirectory`. It opens the
directory, checks its topic id, and works through this descriptor, even if the directory is renamed.

A replica may also be taken from a broker and given back, with the same topic id and a new log. So the reconciler calls
`end` before it renames the directory of a closed partition: later changes fail.

Directories from brokers older than this file have no `partition.metadata`; `claim` adds it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from contextlib import closing
from uuid import UUID

from crc32c import crc32c

from conveyor.kernel.errors import LogDamaged, StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Directory, Disk, File
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS

MARKER = "partition.metadata"
_ID_BYTES = 16


class PartitionDirectory:
    """A `conveyor.kernel.ports.Directory` for one topic id; see the module's docstring. Reads use the path without
    a check.
    """

    def __init__(self, disk: Disk, directory: str, topic_id: TopicId) -> None:
        self.topic_id = topic_id
        self._disk = disk
        self.path = directory
        self._marker = f"{directory}/{MARKER}"
        self._has_ended = False

    def end(self) -> None:
        """Let no work that goes on change files from now on: the next directory of this name is another replica's."""
        self._has_ended = True

    def claim(self) -> None:
        """Write the topic id into a directory without one. Raises StorageFailure if the directory belongs to another
        topic.

        The first flush makes a new log's file durable. If a power failure damages the file before that, or a sync of it
        fails, it is written again.
        """
        names = self._disk.list(self.path)
        was_flushed = LEADER_EPOCHS in names or any(name.endswith(".seal") for name in names)
        if MARKER in names and not was_flushed:
            with closing(self._disk.open(self._marker)) as marker:
                marker.reload()
        if MARKER in names and (was_flushed or self._owner(self._disk) is not None):
            self._check(self._disk)
        elif names:
            self._disk.write_atomic(self._marker, encode_owner(self.topic_id))
        else:
            with closing(self._disk.open(self._marker, create=True)) as marker:
                marker.append([encode_owner(self.topic_id)])

    @property
    def owner(self) -> TopicId | None:
        """The topic id that the directory has; None if it has none, or a damaged one. Raises StorageFailure."""
        return self._owner(self._disk) if self._disk.exists(self._marker) else None

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            return self._held().open(path, create=True)
        opened = self._disk.open(path)
        if self._has_ended:  # Only what was opened before that is surely a file of this directory.
            opened.close()
            raise self._ended()
        return opened

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def write_atomic(self, path: str, content: bytes) -> None:
        self._held().write_atomic(path, content)

    def remove(self, path: str) -> None:
        self._held().remove(path)

    def rename(self, old: str, new: str) -> None:
        self._held().rename(old, new)

    def sync_directory(self, path: str) -> None:
        """Make the directory's entries and its `partition.metadata` durable."""
        held = self._held()
        marker = held.open(self._marker)
        marker.sync()
        marker.close()
        held.sync_directory(path)

    def _held(self) -> Directory:
        """Open the directory, so that later renames do not matter. Raises StorageFailure if it belongs to another
        topic, or to another replica of this one.
        """
        held = self._disk.hold(self.path)
        if self._has_ended:
            raise self._ended()
        self._check(held)
        return held

    def _ended(self) -> StorageFailure:
        return StorageFailure(f"{self.path} is not this replica's any more")

    def _check(self, directory: Directory) -> None:
        owner = self._owner(directory)
        if owner is None:
            raise LogDamaged(
                f"{self._marker} is damaged, and may be removed if the directory belongs to topic id {self.topic_id}"
            )
        if owner != self.topic_id:
            raise StorageFailure(f"{self.path} belongs to topic id {owner}, not to {self.topic_id}")

    def _owner(self, directory: Directory) -> TopicId | None:
        return decode_owner(directory.read(self._marker))


def encode_owner(topic_id: TopicId) -> bytes:
    """Return the content of `partition.metadata`."""
    return _checked(_lines(topic_id)) + b"\n"


def decode_owner(content: bytes) -> TopicId | None:
    """Return the topic id, or None if the content is damaged."""
    fields = dict(line.split(b": ", 1) for line in content.splitlines() if b": " in line)
    try:
        raw = urlsafe_b64decode(fields.get(b"topic_id", b"") + b"==")
    except Base64Error:
        return None
    if len(raw) != _ID_BYTES:
        return None
    topic_id = TopicId(UUID(bytes=raw))
    lines = _lines(topic_id)
    return topic_id if content.removesuffix(b"\n") in (lines, _checked(lines)) else None


def _lines(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}".encode()


def _checked(lines: bytes) -> bytes:
    return b"%b\ncrc32c: %08x" % (lines, crc32c(lines))
