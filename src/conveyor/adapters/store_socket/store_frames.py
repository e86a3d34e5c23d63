"""The messages between the owner of a metadata store and its clients.

Each frame is a u32 length (big-endian) and one message: a MessagePack array whose first element is the tag. A frame of
length 0 shows that its sender is alive. Requests carry a number that their reply repeats; replies come in the order of
the requests. Limits: MAX_REQUEST_BYTES, MAX_REPLY_BYTES.

    client -> owner   Hello, then any number of requests; Goodbye last
    owner -> client   Welcome or Unwelcome, then one reply to each request
                      WatchFired, after the reply to a watched request: what that reply has shown has changed
"""

from collections.abc import Sequence

import msgspec

from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import CheckNode, DeleteNode, PutNode, StoreOperation

MAX_REQUEST_BYTES = 1 << 20
"""As ZooKeeper's limit. The port lets a store refuse commits above 900 KB."""
MAX_REPLY_BYTES = 64 << 20


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The form of every message."""


class Hello(_Message, frozen=True, tag=0):
    """key: what the owner has given to its clients. previous: the client's last session, which ends; 0 for none."""

    key: str
    previous: int


class GetNode(_Message, frozen=True, tag=1):
    number: int
    path: str
    is_watched: bool


class GetChildren(_Message, frozen=True, tag=2):
    number: int
    path: str
    is_watched: bool


class GetTree(_Message, frozen=True, tag=3):
    number: int
    path: str


class WirePut(_Message, frozen=True, tag=0):
    path: str
    value: bytes
    version: int
    is_ephemeral: bool


class WireDelete(_Message, frozen=True, tag=1):
    path: str
    version: int


class WireCheck(_Message, frozen=True, tag=2):
    path: str
    version: int


class CommitNodes(_Message, frozen=True, tag=4):
    number: int
    operations: list[WirePut | WireDelete | WireCheck]


class SyncStore(_Message, frozen=True, tag=5):
    number: int


class Goodbye(_Message, frozen=True, tag=6):
    """End the session. The reply comes when its ephemeral nodes are deleted."""

    number: int


class Welcome(_Message, frozen=True, tag=0):
    session: int
    session_timeout_ms: int


class Unwelcome(_Message, frozen=True, tag=1):
    """The owner does not know the key: it is another process than the one that has started this client."""


class NodeReply(_Message, frozen=True, tag=2):
    """value: None if there is no such node."""

    number: int
    value: bytes | None
    version: int


class ChildrenReply(_Message, frozen=True, tag=3):
    number: int
    names: list[str]


class TreeReply(_Message, frozen=True, tag=4):
    """nodes: (path, value, version)."""

    number: int
    nodes: list[tuple[str, bytes, int]]


class CommitReply(_Message, frozen=True, tag=5):
    """versions: None if a node did not have the required version."""

    number: int
    versions: tuple[int, ...] | None


class DoneReply(_Message, frozen=True, tag=6):
    number: int


class FailedReply(_Message, frozen=True, tag=7):
    """The call has failed with a StorageFailure, or with DiskFull."""

    number: int
    is_disk_full: bool
    reason: str


class WatchFired(_Message, frozen=True, tag=8):
    """The watch of the request with this number has fired."""

    number: int


Request = GetNode | GetChildren | GetTree | CommitNodes | SyncStore | Goodbye
ClientMessage = Hello | GetNode | GetChildren | GetTree | CommitNodes | SyncStore | Goodbye
Reply = NodeReply | ChildrenReply | TreeReply | CommitReply | DoneReply | FailedReply
OwnerMessage = (
    Welcome | Unwelcome | NodeReply | ChildrenReply | TreeReply | CommitReply | DoneReply | FailedReply | WatchFired
)

_encoder = msgspec.msgpack.Encoder()
client_messages: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
owner_messages: msgspec.msgpack.Decoder[OwnerMessage] = msgspec.msgpack.Decoder(OwnerMessage)


def encode(message: ClientMessage | OwnerMessage) -> bytes:
    return _encoder.encode(message)


def to_wire(operations: Sequence[StoreOperation]) -> list[WirePut | WireDelete | WireCheck]:
    """Return the messages of a commit's operations."""
    return [_to_wire(operation) for operation in operations]


def from_wire(operation: WirePut | WireDelete | WireCheck) -> StoreOperation:
    match operation:
        case WirePut():
            return PutNode(operation.path, operation.value, operation.version, operation.is_ephemeral)
        case WireDelete():
            return DeleteNode(operation.path, operation.version)
        case WireCheck():
            return CheckNode(operation.path, operation.version)


def failed(number: int, failure: StorageFailure) -> FailedReply:
    return FailedReply(number, isinstance(failure, DiskFull), str(failure))


def failure_of(reply: FailedReply) -> StorageFailure:
    return DiskFull(reply.reason) if reply.is_disk_full else StorageFailure(reply.reason)


def _to_wire(operation: StoreOperation) -> WirePut | WireDelete | WireCheck:
    match operation:
        case PutNode():
            return WirePut(operation.path, operation.value, operation.version, operation.ephemeral)
        case DeleteNode():
            return WireDelete(operation.path, operation.version)
        case CheckNode():
            return WireCheck(operation.path, operation.version)
