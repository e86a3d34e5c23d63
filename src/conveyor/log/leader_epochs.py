"""Which leader epoch began at which offset; and the file of it, `leader-epoch-checkpoint`, as Kafka writes it:

    0                 version
    2                 number of entries
    0 0               epoch, first offset of it
    3 1042

Epochs and offsets rise from line to line: a leader notes its epoch when it begins, and an epoch that has ended without
a record leaves no line. A follower, or a consumer that knows an epoch, asks here where that epoch ended, and finds out
whether its own log went another way. Source: KIP-101, KIP-279, KIP-320.
"""

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory

NAME = "leader-epoch-checkpoint"
_VERSION = "0"
NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """The epochs of one log, oldest first."""

    def __init__(self, entries: "list[tuple[int, int]] | None" = None) -> None:
        self._entries = entries or []
        self.is_dirty = False
        """Changed since `encode` was last called."""

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset)."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else NO_EPOCH

    def assign(self, epoch: int, offset: int) -> None:
        """Note that an epoch begins at an offset; only a new one changes anything.

        Earlier epochs that began there, or later, have no record.
        """
        if epoch > self.latest:
            while self._entries and self._entries[-1][1] >= offset:
                self._entries.pop()
            self._entries.append((epoch, offset))
            self.is_dirty = True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch up to this one, and the offset where it ended; (-1, -1) for one that is yet to come.

        For one before all that are known: itself, and where the first known one began.
        """
        if epoch == self.latest and self._entries:
            return epoch, log_end_offset
        later = next((number for number, entry in enumerate(self._entries) if entry[0] > epoch), None)
        if later is None or epoch < 0:
            return NO_EPOCH, NO_OFFSET
        if later == 0:
            return epoch, self._entries[0][1]
        return self._entries[later - 1][0], self._entries[later][1]

    def cut_end(self, offset: int) -> None:
        """The log ends before an offset now: forget the epochs that began there or later."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        self._replace(kept)

    def cut_start(self, offset: int) -> None:
        """The log starts at an offset now: the epoch that is under way there begins there."""
        below = [entry for entry in self._entries if entry[1] <= offset]
        if below:
            self._replace([(below[-1][0], offset), *self._entries[len(below) :]])

    def encode(self) -> bytes:
        """The file's content."""
        self.is_dirty = False
        lines = [_VERSION, str(len(self._entries)), *(f"{epoch} {offset}" for epoch, offset in self._entries)]
        return "".join(f"{line}\n" for line in lines).encode()

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            self._entries = entries
            self.is_dirty = True


def load_leader_epochs(disk: Directory, directory: str) -> LeaderEpochs | None:
    """What the file says; None where there is none, or one that does not check out."""
    path = f"{directory}/{NAME}"
    if not disk.exists(path):
        return None
    try:
        version, count, *lines = disk.read(path).decode().splitlines()
        entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
    except ValueError:
        return None
    if version != _VERSION:
        raise StorageFailure(f"{path} has version {version}: start a newer broker")
    is_sound = int(count) == len(entries) and entries == sorted(entries)
    return LeaderEpochs(entries) if is_sound else None
