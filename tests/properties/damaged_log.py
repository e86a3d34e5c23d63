"""The stories of `crashing_log`, with one more kind of step: while the process is down, one file of the log is damaged.

The file is emptied, cut anywhere or between two batches, lost, replaced by an older copy of itself, or one of its bits
has flipped. The process has ended there without a loss of power: in the middle of an operation, or after a clean stop.
Then

    NoSilentLoss       the next start says so, or the log serves every record that was flushed and not deleted
    NoDuplicate        it remembers the producer of each of these records, so that no retry is appended again
    NoUndoneDeletion   it does not begin below its log start

A start says so by a StorageFailure, of which LogIncomplete is one, or by `lacks_batches`; a read says so by failing.
The story ends there. `DamagedLog.excuse` lists all that a start cannot know; a broker that has more to go by than this
directory, the in-sync replicas, may know.
"""

from collections.abc import Callable
from itertools import zip_longest
from random import Random
from typing import NamedTuple

from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.log.producers.producer_snapshot import SUFFIX as SNAPSHOT
from conveyor.log.segments.index import OFFSET_ENTRY
from conveyor.log.segments.offset_file import LOG_START
from conveyor.log.segments.seal import Seal, decode_seal
from conveyor.records.batch import LENGTH_PREFIX_BYTES, MAGIC_END, iterate_batches, read_header
from tests.properties.crashing_log import Batch, Before, CrashingLog
from tests.unit.log.logs import DIRECTORY, read_bytes, segment_file

NO_END = 1 << 62
BASE_OFFSET_BYTES = 8


class Excuse(NamedTuple):
    """What may be missing without a word: the batches that begin in a range of offsets."""

    first_offset: int = 0
    end_offset: int = 0
    reason: str = ""


class DamagedLog(CrashingLog):
    """See the module. fault: what happened to which file; empty before that."""

    has_producers = True

    def __init__(self, random: Random) -> None:
        self.fault, self.excused = "", Excuse()
        self.has_ended = self.was_damaged = False
        """The second: in this step."""
        self.copies: dict[str, list[bytes]] = {}
        """Some earlier contents of files, by path."""
        self.flushed_offset = self.flushed_start_offset = self.start_offset = 0
        """Of the log when its process ended."""
        super().__init__(random)

    def step(self) -> None:
        """The story ends with the first step in which the damage is found or excused."""
        if self.has_ended:
            return
        self.was_damaged = False
        try:
            super().step()
        except StorageFailure:
            if not self.fault:
                raise
            self.has_ended = True
        if self.random.random() < 0.3:
            for path in self.paths():
                self.copies.setdefault(path, []).append(self.content(path))

    def paths(self) -> list[str]:
        """The files of the log, without the cuts of earlier starts."""
        return [path for path in self.disk.paths() if path.startswith(f"{DIRECTORY}/") and "/cut-" not in path]

    def content(self, path: str) -> bytes:
        return bytes(self.disk.open(path).written)

    def kill(self) -> None:
        super().kill()
        log = self.log
        self.flushed_offset = log.written_offset if self.was_stopped else log.flushes.flushed_offset
        self.flushed_start_offset, self.start_offset = log.start.flushed_offset, log.log_start_offset
        if not self.fault and not self.has_lost_cache and self.random.random() < 0.7:
            self.damage()

    def cut_power(self) -> None:
        """Not before a start has seen the damage: it could not tell what the power failure has taken."""
        if self.was_damaged:
            self.kill()
        else:
            super().cut_power()

    def damage(self) -> None:
        """Change a file of the log, if this kind of damage changes it."""
        kind, paths = self.random.choice(KINDS), self.paths()
        logs = [path for path in paths if path.endswith(".log")]
        path = self.random.choice(logs if kind in KINDS_OF_BATCHES or self.random.random() < 0.3 else paths)
        old = self.content(path)
        new = kind(self, path, old)
        if new == old:
            return
        self.excused = self.excuse(path, old, new)
        self.fault, self.was_damaged = f"{kind.__name__} {path}", True
        self.history.append(self.fault)
        if new is None:
            self.disk.remove(path)
        else:
            self.disk.adopt(path, new, len(new))

    # The kinds of damage. Each returns the file's new content; None if the file is lost.

    def lose(self, path: str, content: bytes) -> None:
        return None

    def empty(self, path: str, content: bytes) -> bytes:
        return b""

    def cut(self, path: str, content: bytes) -> bytes:
        return content[: self.random.randint(0, len(content))]

    def cut_between_batches(self, path: str, content: bytes) -> bytes:
        return content[: self.random.choice([position for position, _ in iterate_batches(content)] or [0])]

    def put_back(self, path: str, content: bytes) -> bytes:
        return self.random.choice([content, *self.copies.get(path, [])])

    def flip(self, path: str, content: bytes) -> bytes:
        return self.flipped(content, self.random.randrange(max(len(content), 1)))

    def flip_unchecked(self, path: str, content: bytes) -> bytes:
        """In the part of a batch that its checksum does not cover: the base offset, the length, the leader epoch."""
        start = self.random.choice([position for position, _ in iterate_batches(content)] or [0])
        return self.flipped(content, start + self.random.randrange(MAGIC_END - 1))

    def flipped(self, content: bytes, position: int) -> bytes:
        bit = 1 << self.random.randrange(8)
        return bytes(byte ^ bit if at == position else byte for at, byte in enumerate(content))

    # What is excused.

    def excuse(self, path: str, old: bytes, new: bytes | None) -> Excuse:
        """What a start cannot know, if a file has changed in this way."""
        if not path.endswith(".log"):
            is_older = new in self.copies.get(path, []) and path.endswith((LOG_START, SNAPSHOT))
            return Excuse(0, NO_END, "an older copy of a log start or of producers") if is_older else Excuse()
        bases = [int(name[-24:-4]) for name in self.paths() if name.endswith(".log")]
        base = int(path[-24:-4])
        following = min((other for other in bases if other > base), default=NO_END)
        is_sealed = self.seal(base) is not None
        if new is None:
            is_in_gap = not is_sealed and following <= self.log.copying.gap_offset
            return Excuse(base, following, "offsets may be missing there") if is_in_gap else Excuse()
        changed = [at for at, (one, other) in enumerate(zip_longest(old, new)) if one != other]
        is_flip = len(changed) == 1 and len(old) == len(new)
        hit = [each for each in iterate_batches(old) if each[0] + each[1].size > changed[0]]
        first, end = (hit[0][1].base_offset, hit[0][1].next_offset) if hit else (following, following)
        if not is_flip and len(new) == len(old):
            return Excuse(first, following, "an older copy of the same size")
        if self.was_stopped and len(new) > len(old):
            return Excuse(first, following, "as if the seal of a clean stop had returned")
        if is_flip and is_sealed and changed[0] < self.read_from(base, max(bases)):
            return Excuse(first, end, "a start reads only the end of what was flushed")
        is_placed = changed[0] < LENGTH_PREFIX_BYTES + (hit[0][0] if hit else 0)
        if is_flip and not is_sealed and is_placed and first < self.log.copying.gap_offset:
            return Excuse(first, NO_END, "its offset may be right, or the next batch may begin anywhere")
        is_torn = not is_flip or (len(hit) == 1 and changed[0] >= hit[0][0] + BASE_OFFSET_BYTES)
        if not is_sealed and following == NO_END and is_torn:
            return Excuse(first, NO_END, "as if the last write had been interrupted, and no seal says more")
        return Excuse()

    def seal(self, base: int) -> Seal | None:
        path = segment_file(base, "seal")
        return decode_seal(self.disk.read(path)) if self.disk.exists(path) else None

    def read_from(self, base: int, last: int) -> int:
        """The position from which a start reads a sealed segment: nothing after a clean stop."""
        seal = self.seal(last)
        if seal is not None and seal.ends_log:
            return NO_END
        index = self.disk.read(segment_file(base, "index"))
        return int(OFFSET_ENTRY.unpack(index[-OFFSET_ENTRY.size :])[1]) if index else 0

    # The invariants.

    def check(self, before: Before) -> None:
        if self.was_damaged and self.log.recovered.lacks_batches:
            self.has_ended = True
            return
        if self.was_damaged and not before.changes_all:
            self.check_start()
        super().check(before)
        batches = [each for each in self.batches() if not self.is_excused(each)]
        forgotten = [each[:2] for each in batches if not self.log.producers.find(read_header(each.content))]
        assert not forgotten, f"NoDuplicate: retries of {forgotten} would be appended again after: {self.fault}"
        self.has_ended = self.was_damaged and self.excused.end_offset > 0

    def check_start(self) -> None:
        start, is_stored = self.log.log_start_offset, not self.fault.endswith(LOG_START)
        assert not is_stored or self.flushed_start_offset <= start, f"NoUndoneDeletion: {start} after: {self.fault}"
        assert self.excused.end_offset or start <= self.start_offset, f"NoSilentLoss: from {start} after: {self.fault}"

    def may_lack(self, batch: Batch) -> bool:
        """After damage, only what was flushed must be there. Raises StorageFailure if it cannot be read."""
        if not self.was_damaged:
            return False
        return self.is_excused(batch) or batch.next_offset > self.flushed_offset or self.serves(batch)

    def is_excused(self, batch: Batch) -> bool:
        return self.was_damaged and self.excused.first_offset <= batch.base_offset < self.excused.end_offset

    def serves(self, batch: Batch) -> bool:
        """Whether a reader that asks for a batch gets it. Its leader epoch may have changed."""
        try:
            content = read_bytes(self.log, max(batch.base_offset, self.log.log_start_offset))
        except RequestError:
            return False
        size = len(batch.content)
        return (
            content[:BASE_OFFSET_BYTES] == batch.content[:BASE_OFFSET_BYTES]
            and content[MAGIC_END:size] == batch.content[MAGIC_END:]
        )


KINDS: list[Callable[[DamagedLog, str, bytes], bytes | None]] = [
    DamagedLog.lose,
    DamagedLog.empty,
    DamagedLog.cut,
    DamagedLog.cut_between_batches,
    DamagedLog.put_back,
    DamagedLog.flip,
    DamagedLog.flip_unchecked,
]
KINDS_OF_BATCHES = (DamagedLog.cut_between_batches, DamagedLog.flip_unchecked)
