"""The ports of the core: disk, metadata and time.

The caller passes in the implementations: `adapters` in production, memory implementations in tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

import msgspec

from conveyor.kernel.errors import StorageFailure

Bytes = bytes | bytearray | memoryview


class Volume(msgspec.Struct, frozen=True):
    """A directory's path, and the size and free space of its volume in bytes; -1 for a value that does not apply."""

    path: str
    total_bytes: int
    usable_bytes: int


class File(Protocol):
    """One append-only file. The owner's thread calls all methods; any thread may call `read` and `sync`."""

    @property
    def size(self) -> int:
        """Length in bytes, kept in memory."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`, fewer only at the end of the file.

        May block. Raises StorageFailure.
        """
        ...

    def read_cached(self, position: int, length: int) -> Bytes:
        """Return the leading part of these bytes that is in memory; empty if a read would block or the file ends.

        Raises StorageFailure.
        """
        ...

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Write all buffers at the end.

        Raises StorageFailure, after restoring the previous content if the disk allows it.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes. Raises StorageFailure."""
        ...

    def sync(self) -> None:
        """Wait until all appended bytes are on the disk. Blocks: call it off the event loop. Raises StorageFailure."""
        ...

    def reload(self) -> None:
        """Sync, and let reads return what the disk has from now on: after a failed sync, memory may show bytes that the
        disk lacks, also to the next process. Blocks. Raises StorageFailure.
        """
        ...

    def detach(self) -> None:
        """Keep the content readable through this object after the file's name is removed or reused."""
        ...

    def fence(self, size: int) -> None:
        """Stop following the file, which the owner is about to cut to `size` bytes.

        From now on, a read that reaches beyond `size` raises ReadLater, even if it has already begun on another thread:
        it never returns bytes that are appended after the cut. The content below stays readable through this object, as
        after `detach`. To cut and append, the owner opens the file again. Raises StorageFailure.
        """
        ...

    def release(self) -> None:
        """Never open the file name again. An open file stays readable through this object; once it is closed, a read
        raises ReadLater.
        """
        ...

    def close(self) -> None: ...


class Directory(Protocol):
    """The files of a directory. Paths are separated by `/` and begin with the directory's own path.

    Every method raises StorageFailure: DiskFull if the disk has no space, OutOfFiles if too many files are open.
    """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open an existing file for reading and appending. create: create the file if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; empty if the directory does not exist."""
        ...

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, content: bytes) -> None:
        """Replace a small file atomically: it has either its new content, on disk, or its previous content. Of several
        threads that replace the same file, one after the other does.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if the file does not exist."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        ...


class Disk(Directory, Protocol):
    """A tree of directories and append-only files; paths are relative to its root."""

    def allocate(self, path: str, size: int) -> None:
        """Create a file that occupies `size` bytes of the disk; its content is undefined.

        Leaves no file behind if the disk has no space.
        """
        ...

    def hold(self, directory: str) -> Directory:
        """Return the directory that has this name now. Operations on it follow the directory, even if the name is
        reused.

        Raises StorageFailure, also if the directory does not exist.
        """
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents. Does nothing if it exists. The names of its parents are durable then."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents. Does nothing if it does not exist."""
        ...

    def volume(self, path: str) -> Volume:
        """Return the volume that a directory is on."""
        ...


class FileSyncs(Protocol):
    """The operating system's queue of syncs, if it has one. No thread blocks on the disk."""

    def begin(self, wanted: Sequence[tuple[File, Callable[[StorageFailure | None], None]]]) -> int:
        """Start to sync the appended bytes of files. Each file's function is called on the loop when its sync has
        ended.

        Returns how many files the system has accepted, counted from the first. The caller syncs the others with
        `File.sync`.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of a file that is sent unchanged. The file stays readable, even after its name is removed.

    failed: called when a read of the slice has failed; None if the reader detects the failure itself.
    """

    file: File
    position: int
    length: int
    failed: Callable[[StorageFailure], object] | None = field(default=None, compare=False, repr=False)


class Versioned(msgspec.Struct, frozen=True, array_like=True):
    """A node of the metadata tree: its bytes, and the version that a conditional change refers to."""

    value: bytes
    version: int


ANY_VERSION = -1
ABSENT = 0
"""The version of a node that does not exist. Versions of existing nodes start at 1. A node that was deleted and created
again starts at 1 again, so only a node that is never deleted can serve as a fence.
"""


class PutNode(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Write a node if it has this version (ABSENT: does not exist).

    ephemeral: a node that this operation creates is deleted when the session ends, and has no nodes below it. Writing
    an existing node does not change whether it is ephemeral.
    """

    path: str
    value: bytes
    version: int = ANY_VERSION
    ephemeral: bool = False


class DeleteNode(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Delete a node and everything below it if it has this version.

    ANY_VERSION: the node need not exist. One that another session creates while the commit runs may then remain.
    """

    path: str
    version: int = ANY_VERSION


class CheckNode(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Change nothing, but require that a node has this version (ABSENT: does not exist)."""

    path: str
    version: int


StoreOperation = PutNode | DeleteNode | CheckNode


class SessionState(Enum):
    """The state of a client's session with the metadata store.

    CONNECTED   reads and commits reach the store
    SUSPENDED   the connection is lost; the session may have ended
    LOST        the session has ended, and its ephemeral nodes are deleted

        CONNECTED -> SUSPENDED -> CONNECTED          the same session: its ephemeral nodes still exist
        CONNECTED -> SUSPENDED -> LOST -> CONNECTED  a new session, which has no ephemeral nodes

    The store reconnects by itself, forever. Until then calls fail; one may first wait for the connection, for up to
    `session_timeout_ms`.
    """

    CONNECTED = auto()
    SUSPENDED = auto()
    LOST = auto()


class MetadataStore(Protocol):
    """A small, versioned, watchable tree of bytes. Paths are absolute (`/a/b`). A commit creates the missing parents of
    a node that it writes, as empty nodes, and they remain when their children are deleted.

    A watch (`changed`) is called once, on the event loop, at the next change of the data that the call has read. To
    observe later changes, the caller reads again. The watch is called before any read can return the new state. It is
    also called when the connection is lost, because changes may then pass unseen, and it may be called without any
    change. A call that fails sets no watch.

    Every method raises StorageFailure. After a failed `commit` the change may or may not have happened, or may still
    happen. A later `sync` settles that: once it has returned, reads show the change if it happens at all. Reads never
    go back: a read shows everything that an earlier read of this store has shown, in earlier sessions, too.
    Source: the subset of ZooKeeper's model that Conveyor needs.
    """

    @property
    def session_state(self) -> SessionState: ...

    @property
    def session_timeout_ms(self) -> int:
        """The session, with its ephemeral nodes, outlives a client that does not respond by this time.

        0: the session ends with the process, and no other process uses the store.
        """
        ...

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        """Call back on the event loop with each new state of the session; when the connection is lost, before the
        watches.
        """
        ...

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        """Return a node, or None. The watch also fires when the node is created or deleted."""
        ...

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        """Return the sorted names one level below. The watch fires when a name is added or removed.

        It may also fire when the node itself, or a name at a deeper level, is added or removed.
        """
        ...

    async def tree(self, path: str) -> dict[str, Versioned]:
        """Return every node below a path, by its full path.

        Of the changes made meanwhile it may show some and not others.
        """
        ...

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        """Execute all operations or none, in order. Returns the new version for each operation (0 if it writes
        nothing).

        Returns None, and changes nothing, if a node does not have the version that an operation requires.
        Raises StorageFailure also, and changes nothing, for a node below an ephemeral one; a store may refuse more than
        900 KB in one commit.
        """
        ...

    async def sync(self) -> None:
        """Wait until reads show every change that any client committed before this call."""
        ...

    async def close(self) -> None:
        """End the session. This removes its ephemeral nodes and its watches."""
        ...


class Clock(Protocol):
    """Time, passed in: two clocks that advance together until the wall clock is set.

    now_ms      wall-clock time, milliseconds since the epoch: timestamps that are stored and shown, and the due times
                of schedules and delayed messages. An administrator or NTP may set it forward or back at any time.
    steady_ms   milliseconds since a fixed time before the start of this process: sessions, leases, long polls,
                throttles and every other duration. It is never set, and advances while the machine is suspended.

    A manual clock stands still until the test advances it.
    """

    def now_ms(self) -> int: ...

    def steady_ms(self) -> int: ...

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, at or after a wall-clock time, also if the clock is set.

        Returns the function that cancels it.
        """
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when a duration has passed, even if the wall clock is set. Time for which the machine is
        suspended may not count.

        Returns the function that cancels it.
        """
        ...

    def time_out(self, wait_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Like `call_later`, for a client that measures its wait by its own clock.

        A manual clock may call back after real time has passed, because the clients' clocks do not stand still.
        """
        ...

    def when_set(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call back with the difference in ms (negative: back) each time the wall clock is set.

        The callbacks run before any other code of the broker sees the new time. Returns the function that ends the
        calls.
        """
        ...
