"""The calls of a client to the owner of its metadata store, in the frames that brokers use between themselves: see
`broker.remote.call_frames`.

    client -> owner   Ask `greet`, then Asks of any other call, `end session` last
    owner -> client   Answered or Refused, in the order of the Asks
                      Answered again, empty, to a watched `get` or `children`: what the first answer shows has changed

An Ask names no image (0) and no caller (null), and is never withdrawn. A Refused is a failure of the store. Limits:
MAX_REQUEST_BYTES of a frame to the owner, MAX_REPLY_BYTES of an answer.
"""

from collections.abc import Sequence

import msgspec

from conveyor.broker.remote.calls import Call
from conveyor.kernel.errors import DiskFull, ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import StoreOperation, Versioned

MAX_REQUEST_BYTES = 1 << 20
"""As ZooKeeper's limit. The port lets a store refuse commits above 900 KB."""
MAX_REPLY_BYTES = 64 << 20
FRAME_BYTES = 64
"""More than a frame of an answer has beside its payload."""


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """key: what the owner has given to its clients. previous: the client's last session, which ends; 0 for none."""

    key: str
    previous: int


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    session: int
    session_timeout_ms: int


class Read(msgspec.Struct, frozen=True, array_like=True):
    path: str
    is_watched: bool


GREET: Call[Greeting, Welcome | None] = Call("greet", Greeting, Welcome | None, is_repeatable=False)
"""The answer is None if the owner does not know the key: another process has started this client."""
GET: Call[Read, Versioned | None] = Call("get", Read, Versioned | None, is_repeatable=True)
CHILDREN: Call[Read, list[str]] = Call("children", Read, list[str], is_repeatable=True)
TREE: Call[str, dict[str, Versioned]] = Call(
    "tree", str, dict[str, Versioned], is_repeatable=True, max_bytes=MAX_REPLY_BYTES
)
COMMIT: Call[Sequence[StoreOperation], tuple[int, ...] | None] = Call(
    "commit", list[StoreOperation], tuple[int, ...] | None, is_repeatable=False
)
SYNC: Call[None, None] = Call("sync", None, None, is_repeatable=True)
END_SESSION: Call[None, None] = Call("end session", None, None, is_repeatable=True)
"""Answered when the session's ephemeral nodes are deleted."""


def failure_of(error: RequestError) -> StorageFailure:
    """Return the failure of the store that the owner has refused a call with."""
    return DiskFull(error.message) if error.kind is ErrorKind.DISK_FULL else StorageFailure(error.message)
