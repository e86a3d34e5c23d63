"""The metadata log as nodes of the store: paths and node contents.

    /controller-epoch         <number>: rises with each controller; its version fences writes of earlier ones
    /controllers/<epoch>      ephemeral {"node_id": 1, "incarnation": "<uuid>"}: the controller of that epoch
    /log/head                 {"seq": 7, "snapshot": 5, "chunks": 1, "batch": "<uuid>"}
    /log/e/<seq>              one entry: changes that a controller has decided together
    /log/s/<seq>/<number>     one part of a snapshot: changes that build the image after that entry

    head.seq       the last entry. Entries from head.snapshot + 1 to head.seq exist.
    batch          identifies a write, so that a writer whose reply was lost can check whether it succeeded: of an entry
                   by the entry, of a snapshot by the head.

Numbers in paths have twelve digits. Entries and parts are JSON, compressed (zlib) above 64 KiB.
"""

import zlib
from collections.abc import Sequence
from uuid import UUID

import msgspec

from conveyor.cluster.changes import Change
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure

CONTROLLER_EPOCH_PATH = "/controller-epoch"
CONTROLLERS_PATH = "/controllers"
LOG_PATH = "/log"
HEAD_PATH = "/log/head"
ENTRIES_PATH = "/log/e"
SNAPSHOTS_PATH = "/log/s"

MAX_ENTRY_BYTES = 512 << 10
"""The stored size. ZooKeeper accepts requests of up to 1 MiB."""

_COMPRESSED_ABOVE_BYTES = 64 << 10
_MAX_UNPACKED_BYTES = 64 << 20
"""The uncompressed size of an entry or a part. A larger one is never written, and counts as damaged when read."""

_ZLIB_FIRST_BYTE = 0x78


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring. chunks: the number of the snapshot's parts, at least one."""

    seq: int
    snapshot: int
    chunks: int
    batch: UUID

    def __post_init__(self) -> None:
        if not (0 <= self.snapshot <= self.seq and self.chunks > 0):
            raise ValueError(f"no log has a snapshot of {self.chunks} parts at {self.snapshot} and ends at {self.seq}")


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one entry.

    controller_epoch: of the controller that decided them; 0 for a broker that did not act as the controller.
    batch: of the write that stored them.
    """

    controller_epoch: int
    changes: tuple[Change, ...]
    batch: UUID


_decode_controller_epoch = msgspec.json.Decoder(int).decode
_decode_head = msgspec.json.Decoder(LogHead).decode
_decode_entry = msgspec.json.Decoder(LogEntry).decode
_decode_changes = msgspec.json.Decoder(tuple[Change, ...]).decode


def controller_path(epoch: int) -> str:
    return f"{CONTROLLERS_PATH}/{epoch:012}"


def entry_path(seq: int) -> str:
    return f"{ENTRIES_PATH}/{seq:012}"


def snapshot_path(seq: int) -> str:
    """Return the parent path of a snapshot's parts."""
    return f"{SNAPSHOTS_PATH}/{seq:012}"


def chunk_path(seq: int, number: int) -> str:
    return f"{snapshot_path(seq)}/{number:012}"


def encode_head(head: LogHead) -> bytes:
    return msgspec.json.encode(head)


def decode_head(content: bytes) -> LogHead:
    """Return the decoded head. Raises StorageFailure."""
    try:
        return _decode_head(content)
    except msgspec.MsgspecError as error:
        raise _damaged(HEAD_PATH, error) from error


def decode_controller_epoch(content: bytes) -> int:
    """Return the decoded controller epoch. Raises StorageFailure."""
    try:
        return _decode_controller_epoch(content)
    except msgspec.MsgspecError as error:
        raise _damaged(CONTROLLER_EPOCH_PATH, error) from error


def encode_entry(entry: LogEntry) -> bytes:
    """Return the bytes of an entry.

    Raises RequestError (INVALID_REQUEST): too many changes, or text that is not Unicode.
    """
    try:
        content = msgspec.json.encode(entry)
    except UnicodeEncodeError as error:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"the change has text that is not Unicode: {error}") from error
    packed = _packed(content)
    if len(packed) > MAX_ENTRY_BYTES or len(content) > _MAX_UNPACKED_BYTES:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            f"the change takes {len(packed)} bytes of metadata, the limit is {MAX_ENTRY_BYTES}: divide it",
        )
    return packed


def decode_entry(seq: int, content: bytes) -> LogEntry:
    """Return the decoded entry. Raises StorageFailure."""
    try:
        return _decode_entry(_unpacked(content))
    except (msgspec.MsgspecError, zlib.error, ValueError) as error:
        raise _damaged(entry_path(seq), error) from error


def encode_snapshot(changes: Sequence[Change]) -> list[bytes]:
    """Return the parts of a snapshot, at least one. A part exceeds MAX_ENTRY_BYTES only if a single change does."""
    parts: list[bytes] = []
    undivided = [tuple(changes)]
    while undivided:
        part = undivided.pop()
        content = msgspec.json.encode(part)
        packed = _packed(content)
        if len(part) > 1 and (len(packed) > MAX_ENTRY_BYTES or len(content) > _MAX_UNPACKED_BYTES):
            middle = len(part) // 2
            undivided += [part[middle:], part[:middle]]
        else:
            parts.append(packed)
    return parts


def decode_chunk(path: str, content: bytes) -> tuple[Change, ...]:
    """Return the changes in one part of a snapshot. Raises StorageFailure."""
    try:
        return _decode_changes(_unpacked(content))
    except (msgspec.MsgspecError, zlib.error, ValueError) as error:
        raise _damaged(path, error) from error


def _packed(content: bytes) -> bytes:
    return content if len(content) <= _COMPRESSED_ABOVE_BYTES else zlib.compress(content, 6)


def _unpacked(content: bytes) -> bytes:
    """Raise zlib.error, ValueError."""
    if content[:1] != bytes([_ZLIB_FIRST_BYTE]):
        return content
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(content, _MAX_UNPACKED_BYTES)
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"unpacks to more than {_MAX_UNPACKED_BYTES} bytes, or is not one whole stream")
    return unpacked


def _damaged(path: str, error: Exception) -> StorageFailure:
    return StorageFailure(f"metadata store: node {path} is damaged, or a later version has written it: {error}")
