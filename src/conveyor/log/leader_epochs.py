"""The start offset of each leader epoch, and its file `leader-epoch-checkpoint` in Kafka's format, with a checksum:

    0                 version
    2                 number of entries
    0 0               epoch, start offset
    3 1042
    crc32c 5d3b1f0e   of the lines above, in hexadecimal

Followers truncate by these offsets: without a checksum, one flipped bit would remove records or keep diverging ones.
Epochs and offsets rise from line to line. A leader adds its epoch when it begins to lead. An epoch that ended without a
record has no line. Followers and consumers that know an epoch ask where it ended, to detect whether their log has
diverged. Source: KIP-101, KIP-279, KIP-320.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory

NAME = "leader-epoch-checkpoint"
_VERSION = "0"
_CHECKSUM = b"crc32c "
NO_EPOCH = -1
NO_OFFSET = -1
MAX_EPOCH = (1 << 31) - 1


class LeaderEpochs:
    """The leader epochs of one log, oldest first."""

    def __init__(self, entries: "list[tuple[int, int]] | None" = None) -> None:
        self._entries = entries or []
        self._leaders: list[tuple[int, int]] = []
        self.is_dirty = False
        """Whether there are changes since the last `encode`."""

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset) pairs."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else NO_EPOCH

    def copy_from(self, entries: Iterable[tuple[int, int]]) -> None:
        """Take the starts of new epochs from these entries of a leader, as long as this log follows it.

        Compaction may have removed an epoch's first records, or all of them, before this log could copy them.
        """
        self._leaders = list(entries)

    def assign(self, epoch: int, offset: int, first_offset: int = NO_OFFSET) -> None:
        """Start an epoch at an offset. An epoch that is not newer than the latest changes nothing.

        Entries at or above the offset are removed, because their epochs have no records. first_offset: of the first
        record, on a follower; between both, the leader's entries decide, and without them the epoch starts at `offset`.
        """
        if epoch > self.latest:
            if first_offset > offset:
                self.skip(offset, first_offset + 1, epoch)
            if epoch > self.latest:
                self._append(epoch, offset)

    def skip(self, offset: int, next_offset: int, epoch: int = MAX_EPOCH) -> None:
        """On a follower: start the leader's epochs up to this one that begin before `next_offset`, at `offset` or
        above.
        """
        for skipped, start_offset in self._leaders:
            if self.latest < skipped <= epoch and start_offset < next_offset:
                self._append(skipped, max(start_offset, offset))

    def _append(self, epoch: int, offset: int) -> None:
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        self._entries.append((epoch, offset))
        self.is_dirty = True

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to this one and its end offset; (-1, -1) for an epoch above the latest.

        For an epoch below the first known one: the epoch itself, and the start offset of the first known one.
        """
        if epoch == self.latest and self._entries:
            return epoch, log_end_offset
        later = next((number for number, entry in enumerate(self._entries) if entry[0] > epoch), None)
        if later is None or epoch < 0:
            return NO_EPOCH, NO_OFFSET
        if later == 0:
            return epoch, self._entries[0][1]
        return self._entries[later - 1][0], self._entries[later][1]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at an offset; -1 below the first known epoch."""
        return next((epoch for epoch, start_offset in reversed(self._entries) if start_offset <= offset), NO_EPOCH)

    def cut_end(self, offset: int) -> bool:
        """Remove epochs that start at or above the new log end offset. Returns whether there were any."""
        kept = [entry for entry in self._entries if entry[1] < offset]
        is_shorter = len(kept) < len(self._entries)
        self._replace(kept)
        return is_shorter

    def cut_start(self, offset: int) -> None:
        """Move the start of the epoch at the new log start offset there, and remove earlier epochs."""
        below = [entry for entry in self._entries if entry[1] <= offset]
        if below:
            self._replace([(below[-1][0], offset), *self._entries[len(below) :]])

    def encode(self) -> bytes:
        """Return the file's content, and clear `is_dirty`."""
        self.is_dirty = False
        lines = [_VERSION, str(len(self._entries)), *(f"{epoch} {offset}" for epoch, offset in self._entries)]
        text = "".join(f"{line}\n" for line in lines).encode()
        return b"%b%b%08x\n" % (text, _CHECKSUM, crc32c(text))

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            self._entries = entries
            self.is_dirty = True


def diverging_end(
    epochs: LeaderEpochs, log_end_offset: int, last_fetched_epoch: int, fetch_offset: int
) -> tuple[int, int] | None:
    """On the leader: return the epoch and end offset by which a follower must truncate; None if its log continues here.

    last_fetched_epoch: the epoch of the follower's last record, -1 for an empty log. fetch_offset: the follower's log
    end offset. A leader has the latest epoch of all replicas: an epoch above it raises AssertionError. Source: KIP-595.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end_offset = epochs.end_of(last_fetched_epoch, log_end_offset)
    assert epoch != NO_EPOCH, f"epoch {last_fetched_epoch} of a follower is above {epochs.latest}, the leader's latest"
    return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < fetch_offset else None


def truncation_point(epochs: LeaderEpochs, log_end_offset: int, leader_end: tuple[int, int]) -> int:
    """On a follower: return the offset to truncate to, for the answer of `diverging_end` on its leader.

    That is the smaller end offset of the leader's epoch in both logs. Afterwards the logs may still differ, in an older
    epoch: the follower asks again, at most once for each of its epochs. Records that both logs share are never removed.
    Source: KIP-279.
    """
    epoch, leader_end_offset = leader_end
    _, own_end_offset = epochs.end_of(epoch, log_end_offset)
    known = log_end_offset if own_end_offset == NO_OFFSET else own_end_offset
    return min(leader_end_offset, known, log_end_offset)


def shared_end(
    earlier: Sequence[tuple[int, int]], earlier_end_offset: int, epochs: LeaderEpochs, log_end_offset: int
) -> int:
    """Return the end of the records that a log shares with another one, or with itself at an earlier time.

    earlier: the entries of the other log. earlier_end_offset: its end, or a higher offset. Records of one epoch and
    offset are the same, and so are all records before them: the last epoch of both logs decides, by its smaller end.
    Without a common epoch they share nothing at or above the first entry; below it, all records are deleted.
    """
    entries = epochs.entries
    ends = {epoch: end_offset for (epoch, _), (_, end_offset) in pairwise((*entries, (MAX_EPOCH, log_end_offset)))}
    for (epoch, _), (_, end_offset) in reversed([*pairwise((*earlier, (MAX_EPOCH, earlier_end_offset)))]):
        if epoch in ends:
            return min(end_offset, ends[epoch])
    return entries[0][1] if entries else 0


def load_leader_epochs(disk: Directory, directory: str) -> LeaderEpochs | None:
    """Load the file. Returns None if it is missing or damaged. Raises StorageFailure for a newer version."""
    path = f"{directory}/{NAME}"
    if not disk.exists(path):
        return None
    text, mark, checksum = disk.read(path).rpartition(_CHECKSUM)
    if not mark or checksum != b"%08x\n" % crc32c(text):
        return None
    try:
        version, count, *lines = text.decode().splitlines()
        entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
        is_sound = int(count) == len(entries) and entries == sorted(entries)
    except ValueError:
        return None
    if version != _VERSION:
        raise StorageFailure(f"{path} has version {version}: start a newer broker")
    return LeaderEpochs(entries) if is_sound else None
