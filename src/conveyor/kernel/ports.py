"""The ports of the core: disk, metadata and time. What is behind them is passed in (`adapters`, or memory in tests)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from conveyor.kernel.errors import StorageFailure

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Volume:
    """Where a directory is, and the room there, in bytes; -1 where that has no meaning."""

    path: str
    total_bytes: int
    usable_bytes: int


class File(Protocol):
    """One append-only file. Its owner's thread calls all methods; any thread may call `read` and `sync`."""

    @property
    def size(self) -> int:
        """Length in bytes, kept in memory."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end. May wait for the disk. Raises StorageFailure."""
        ...

    def read_cached(self, position: int, length: int) -> Bytes:
        """What is in memory of these bytes, from the first on; nothing where a read has to wait, or the file ends.

        Raises StorageFailure.
        """
        ...

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Write all buffers at the end. Raises StorageFailure; the file is then as it was, as far as the disk lets."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file. Raises StorageFailure."""
        ...

    def sync(self) -> None:
        """Wait until what was appended is on the disk. Blocks: call it off the event loop. Raises StorageFailure."""
        ...

    def detach(self) -> None:
        """Keep the content readable for whoever holds this file, though its name goes, or is given to another file."""
        ...

    def release(self) -> None:
        """Never open the name again. What is open stays readable for whoever holds this file; else reading fails."""
        ...

    def close(self) -> None: ...


class Directory(Protocol):
    """The files of a directory; paths have `/` and begin with the directory's own.

    Everything raises StorageFailure: DiskFull where there is no room, OutOfFiles where too many files are open.
    """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file that is there, for reading and appending. create: make it if it is not there."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Sorted names in a directory; empty if it is not there."""
        ...

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, content: bytes) -> None:
        """Replace a small file: whole and on disk, or as before."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        ...


class Disk(Directory, Protocol):
    """A tree of directories and append-only files; paths are relative to its root."""

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes up so many bytes of the disk, whatever it holds. Leaves none if there is no room."""
        ...

    def hold(self, directory: str) -> Directory:
        """The directory that has this name now: what is done through it happens there, whatever the name is given to.

        Raises StorageFailure, also if it is not there.
        """
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; nothing happens if it is there."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; nothing happens if it is not there."""
        ...

    def volume(self, path: str) -> Volume:
        """What a directory is on."""
        ...


class FileSyncs(Protocol):
    """The system's own queue of syncs, where there is one: no thread waits for the disk."""

    def begin(self, wanted: Sequence[tuple[File, Callable[[StorageFailure | None], None]]]) -> int:
        """Begin to sync what was appended to files; each one's function is called on the loop when that has ended.

        Returns how many the system has taken, from the first on. The others wait in `File.sync`.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of a file that is sent as it is. The file stays readable, even after its name is gone.

    failed: called when a read of it has failed; None where the reader itself finds out.
    """

    file: File
    position: int
    length: int
    failed: Callable[[StorageFailure], object] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node of the metadata tree: its bytes, and the version that a conditional change names."""

    value: bytes
    version: int


ANY_VERSION = -1
ABSENT = 0
"""Versions of existing nodes start at 1."""


class MetadataStore(Protocol):
    """A small, versioned, watchable tree of bytes; paths are absolute, `/a/b`, parents made as needed.

    Source of the shape: ZooKeeper, of which it is the part that Conveyor needs.
    """

    async def get(self, path: str) -> Versioned | None: ...

    async def children(self, path: str) -> list[str]:
        """Sorted names one level below."""
        ...

    async def tree(self, path: str) -> dict[str, Versioned]:
        """Every node below a path, by its full path."""
        ...

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION, *, ephemeral: bool = False) -> int | None:
        """Write if the node has that version (ABSENT: is not there). Returns the new version, None if it had another.

        ephemeral: the node goes when this store's session ends.
        """
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        """Delete a node and what is below it, if it has that version. False if it had another or is not there."""
        ...

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(path)` after each change at or below a path, on the event loop. Returns what ends the watch."""
        ...

    async def close(self) -> None: ...


class Clock(Protocol):
    """Time, passed in: two clocks that advance together, until the first is set.

    now_ms      wall-clock time, milliseconds since the epoch: what is stored and shown, and when schedules and delayed
                messages are due. An administrator or NTP may set it forward or back at any moment.
    steady_ms   milliseconds since some moment before the start of this process: sessions, leases, long polls, throttles
                and every other duration. It is never set.

    A manual clock stands still until it is moved.
    """

    def now_ms(self) -> int: ...

    def steady_ms(self) -> int: ...

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, at or after a wall-clock time, also when the clock is set. Returns what cancels it."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, when a duration has passed, whatever the wall clock is set to. Returns what cancels it."""
        ...

    def time_out(self, wait_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """As `call_later`, for a client that waits for an answer by a clock of its own.

        A manual clock may call back once the time has really passed: the clients' clocks do not stand still.
        """
        ...

    def when_set(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call back with the difference in ms (negative: back) each time the wall clock was set. Returns what ends it.

        The callbacks run before any other code of the broker sees the new time.
        """
        ...
