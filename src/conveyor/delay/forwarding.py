"""When the records of an inbox go on to their topic: one machine for each partition; its log is the inbox itself.

    not scanned -> ready                             -> intent noted -> in the topic
                -> withheld -(due)-> ready
                -> withheld -> cancelled

    take(runs)          what producers have put into the inbox, in the order of its offsets
    expire(now_ms)      the next intent, if anything is due; it is noted in the inbox, and on the disk, before it is
                        carried out: see `forwarding_history` for how a crash between the two is made good
    apply(note)         the only thing that changes hard state
    next_deadline_ms()  when `expire` has something to decide

What is not due waits in a heap of plain integers, some 50 bytes each; records are read when they go on. Those that are
due go in the order of their times, those that ask for no delay in the order of their offsets.
"""

import heapq
from collections import deque
from collections.abc import Iterable

from conveyor.delay.forwarding_history import ForwardingHistory
from conveyor.delay.forwarding_records import Cancelled, Intent, Note, Range
from conveyor.delay.forwarding_scan import DueRun
from conveyor.kernel.errors import ErrorKind, RequestError

RECORDS_AT_ONCE = 4096

_OFFSET_BITS = 56
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_MAX_READY = 4096
_BUCKET_BITS = 12


class Forwarding:
    """See the module's docstring.

    history: all notes of the inbox. scanned_offset: where the inbox starts. topic_end_offset: where the topic ends.
    at_once: records of one intent, though a batch that goes on whole is not divided.
    """

    def __init__(
        self, history: ForwardingHistory, scanned_offset: int, topic_end_offset: int, at_once: int = RECORDS_AT_ONCE
    ) -> None:
        history.undo(topic_end_offset)
        self.scanned_offset = scanned_offset
        self._at_once = at_once
        self._forwarded = history.forwarded()
        self._early = history.early()
        self._cancelled = {each for each in history.cancelled if each >= scanned_offset}
        self._fired_ms = history.fired_ms
        self._ready: deque[Range] = deque()
        self._has_early = False
        self._timers: list[int] = []
        self._held: dict[int, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether enough is ready for now: take more when that has gone on."""
        return len(self._ready) >= _MAX_READY

    @property
    def withheld_count(self) -> int:
        """Records that wait for their time, and those among them that were cancelled."""
        return len(self._timers)

    def has_forwarded(self, start: int, end: int) -> bool:
        """Whether the history says that all of [start, end) lies in the topic, so that nobody needs to scan it."""
        return self._forwarded.end_of_range_at(start) >= end

    def take(self, runs: Iterable[DueRun], next_offset: int, *, now_ms: int, honours_delay: bool) -> None:
        """Go on to an offset; the records up to there are these. What is due by now is ready, behind what is ready."""
        for run in runs:
            for start, end in self._forwarded.gaps(run.start, run.end):
                if run.due_ms > now_ms and honours_delay:
                    heapq.heappush(self._timers, run.due_ms << _OFFSET_BITS | start)
                elif start in self._cancelled:
                    continue
                else:
                    self._ready.append((start, end))
                    self._has_early = self._has_early or run.due_ms > now_ms
                self._hold(start, end, 1)
        self.scanned_offset = next_offset

    def forget_history(self) -> None:
        """Everything that was in the inbox when it was opened is scanned."""
        self._forwarded.clear()

    def expire(self, now_ms: int, topic_offset: int) -> Intent | None:
        """What goes on now, to lie in the topic from an offset on; None if nothing is due."""
        self._fired_ms = max(self._fired_ms, now_ms)
        self._fire(now_ms)
        ranges: list[Range] = []
        count = 0
        while self._ready and count < self._at_once:
            start, end = self._ready.popleft()
            ranges.append((start, end))
            count += end - start
        if not ranges:
            return None
        is_early, self._has_early = self._has_early, self._has_early and bool(self._ready)
        return Intent(topic_offset, self._fired_ms, tuple(ranges), is_early)

    def handle(self, command: Cancelled, due_ms: int, now_ms: int) -> Note:
        """Decide whether a record shall never be forwarded. due_ms: when it is due. Raises RequestError."""
        if due_ms <= now_ms or not self._is_withheld(command.offset, due_ms, now_ms):
            raise RequestError(ErrorKind.MESSAGE_NOT_DELAYED, "the message is due: it cannot be cancelled any more")
        return command

    def apply(self, note: Note) -> None:
        """Take a note that was just appended."""
        if isinstance(note, Cancelled):
            self._cancelled.add(note.offset)
        elif note.is_early:
            for start, end in note.ranges:
                self._early.add(start, end)

    def is_waiting(self, offset: int, due_ms: int, now_ms: int) -> bool:
        """Whether a record of the inbox is still to be forwarded."""
        if offset in self._cancelled:
            return False
        if offset >= self.scanned_offset or self._is_ready(offset):
            return True
        return self._is_withheld(offset, due_ms, now_ms)

    def release(self, intent: Intent) -> None:
        """An intent was carried out, and what it has brought into the topic is safe."""
        for start, end in intent.ranges:
            self._hold(start, end, -1)

    def held_from(self) -> int:
        """Nothing below this offset of the inbox is needed any more."""
        return min(next(iter(self._held), _OFFSET_MASK) << _BUCKET_BITS, self.scanned_offset)

    def next_deadline_ms(self) -> int | None:
        """When `expire` must next be called."""
        if self._ready:
            return 0
        return self._timers[0] >> _OFFSET_BITS if self._timers else None

    def _fire(self, now_ms: int) -> None:
        """Records that are due by now are ready, in the order of their times."""
        timers, end = self._timers, (now_ms + 1) << _OFFSET_BITS
        while timers and timers[0] < end and not self.is_full:
            offset = heapq.heappop(timers) & _OFFSET_MASK
            if offset in self._cancelled:
                self._cancelled.discard(offset)
                self._hold(offset, offset + 1, -1)
            else:
                self._ready.append((offset, offset + 1))

    def _is_withheld(self, offset: int, due_ms: int, now_ms: int) -> bool:
        """Whether a record waits for its time; one that is due by `_fired_ms` only does if the clock was set back."""
        if due_ms > self._fired_ms:
            return offset not in self._early and not self._is_ready(offset)
        return due_ms > now_ms and due_ms << _OFFSET_BITS | offset in self._timers

    def _is_ready(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._ready)

    def _hold(self, start: int, end: int, sign: int) -> None:
        """Count the records of a run that are needed still, by the neighbourhood of where it begins."""
        bucket = start >> _BUCKET_BITS
        held = self._held.get(bucket, 0) + sign * (end - start)
        if held:
            self._held[bucket] = held
        else:
            del self._held[bucket]
