"""Decides when an inbox's records are forwarded to their topic: one state machine per partition; its log is the inbox.

    not scanned -> ready                             -> intent noted -> in the topic
                -> withheld -(due)-> ready
                -> withheld -> cancelled

Hard state: the notes in the inbox. `forwarding_history` describes how they repair a crash between an intent and its
execution. Soft state: the withheld and ready records, which the inbox scan passes to `take`. The caller that executes
intents asks for the `NextIntent`, and receives it once it is on the disk. A further request confirms that the previous
intent is executed. So at most one intent is in progress, and records that become due meanwhile join the next one.

Records that are not due wait in a heap of plain integers, about 50 bytes each; a record is read when it is forwarded.
Due records are forwarded in the order of their due times, records without a delay in the order of their offsets.

The scan ends at the inbox's last stable offset and passes over aborted records, so only committed records are taken.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable

from conveyor.delay.forwarding_history import ForwardingHistory
from conveyor.delay.forwarding_records import Cancelled, Intent, Range, note_record, read_note
from conveyor.delay.forwarding_scan import DueRun
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.range_set import RangeSet
from conveyor.kernel.state_machine import Answer_co, Command, LogRecord, Outcome, Reply, Token

RECORDS_AT_ONCE = 4096

_OFFSET_BITS = 56
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_MAX_READY = 4096
_BUCKET_BITS = 12


class ForwardingCommand(Command[Answer_co], frozen=True):
    """A command to a forwarder's machine."""


class NextIntent(ForwardingCommand[Intent], frozen=True):
    """Ask for the next intent, as soon as there is one. Confirms that the previous intent is executed."""


class CancelForwarding(ForwardingCommand[None], frozen=True, kw_only=True):
    """Cancel a withheld record, so that it is never forwarded. due_ms: its due time. Refusal: MESSAGE_NOT_DELAYED."""

    offset: int
    due_ms: int


class Forwarding:
    """See the module's docstring; for the contract, `conveyor.kernel.state_machine`. Call `begin` after the replay.

    topic_end_offset: the present end offset of the topic's partition. may_forward: whether forwarding is allowed.
    at_once: the most records of one intent, except that a batch forwarded whole is not divided.
    """

    def __init__(
        self, topic_end_offset: Callable[[], int], may_forward: Callable[[], bool], at_once: int = RECORDS_AT_ONCE
    ) -> None:
        self.scanned_offset = 0
        self._topic_end_offset = topic_end_offset
        self._may_forward = may_forward
        self._at_once = at_once
        self._history: ForwardingHistory | None = ForwardingHistory()
        """All notes, until `begin`."""
        self._forwarded = RangeSet()
        self._early = RangeSet()
        self._cancelled: set[int] = set()
        self._fired_ms = 0
        self._ready: deque[Range] = deque()
        self._has_early = False
        self._timers: list[int] = []
        self._held: dict[int, int] = {}
        self._taker: Token | None = None
        """The caller that waits for the next intent."""
        self._must_note = False
        """Whether an intent was undone: the next one says where, also if it has no records."""

    def begin(self, inbox_start_offset: int) -> None:
        """All notes are applied.

        Drop from the history the records that are not in the topic: they were never forwarded.
        """
        history = self._history
        assert history is not None, "begin is called only once"
        self._must_note = history.undo(self._topic_end_offset())
        self.scanned_offset = inbox_start_offset
        self._forwarded = history.forwarded()
        self._early = history.early()
        self._cancelled = {offset for offset in history.cancelled if offset >= inbox_start_offset}
        self._fired_ms = history.fired_ms
        self._history = None

    def apply(self, record: LogRecord) -> None:
        note = read_note(record)
        if self._history is not None:
            self._history.apply(note)
        elif isinstance(note, Cancelled):
            self._cancelled.add(note.offset)
        elif note.is_early:
            for start, end in note.ranges:
                self._early.add(start, end)

    def loaded(self, now_ms: int) -> None:
        """Does nothing: `begin` needs the topic's end offset."""

    def clock_set(self, by_ms: int) -> None:
        """Does nothing: due times are absolute."""

    def handle(self, command: ForwardingCommand[object], token: Token, now_ms: int) -> Outcome:
        match command:
            case NextIntent():
                self._taker = token
                return self.expire(now_ms)
            case CancelForwarding():
                return self._cancel(command, token, now_ms)
            case _:
                raise AssertionError(f"{command} is not a command of a forwarder")

    def expire(self, now_ms: int) -> Outcome:
        """Also called when `take` has added records."""
        taker = self._taker
        if taker is None or not self._may_forward():
            return Outcome()
        intent = self._next_intent(now_ms)
        if intent is None:
            return Outcome()
        self._taker = None
        return Outcome((note_record(intent),), (Reply(taker, intent),))

    def next_deadline_ms(self) -> int | None:
        if self._taker is None or not self._may_forward():
            return None
        if self._ready:
            return 0
        return self._timers[0] >> _OFFSET_BITS if self._timers else None

    @property
    def is_idle(self) -> bool:
        """Whether no intent is in progress: all that are noted are either in the topic, or undone by a later one."""
        return self._taker is not None and not self._must_note

    @property
    def is_full(self) -> bool:
        """Whether enough records are ready. Call `take` again when they are forwarded."""
        return len(self._ready) >= _MAX_READY

    @property
    def withheld_count(self) -> int:
        """The number of records that wait for their due time, including cancelled ones."""
        return len(self._timers)

    def has_forwarded(self, start: int, end: int) -> bool:
        """Return whether the history shows all of [start, end) in the topic, so that no scan is needed."""
        return self._forwarded.end_of_range_at(start) >= end

    def take(self, runs: Iterable[DueRun], next_offset: int, *, now_ms: int, honours_delay: bool) -> None:
        """Add the scanned records up to `next_offset`.

        Records that are due by now become ready, after those already ready.
        """
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
        """Drop the history, because all records that were in the inbox when it was opened are scanned."""
        self._forwarded.clear()

    def is_waiting(self, offset: int, due_ms: int, now_ms: int) -> bool:
        """Return whether a record of the inbox is still to be forwarded."""
        if offset in self._cancelled:
            return False
        if offset >= self.scanned_offset or self._is_ready(offset):
            return True
        return self._is_withheld(offset, due_ms, now_ms)

    def release(self, intent: Intent) -> None:
        """Release an intent that is executed and whose records are durable in the topic."""
        for start, end in intent.ranges:
            self._hold(start, end, -1)

    def retain_from_offset(self) -> int:
        """Return the lowest inbox offset that is still needed."""
        return min(next(iter(self._held), _OFFSET_MASK) << _BUCKET_BITS, self.scanned_offset)

    def _next_intent(self, now_ms: int) -> Intent | None:
        """Return the intent of the records that are due now; None if there are none."""
        self._fired_ms = max(self._fired_ms, now_ms)
        self._fire(now_ms)
        ranges: list[Range] = []
        count = 0
        while self._ready and count < self._at_once:
            start, end = self._ready.popleft()
            ranges.append((start, end))
            count += end - start
        if not ranges and not self._must_note:
            return None
        self._must_note = False
        is_early, self._has_early = self._has_early, self._has_early and bool(self._ready)
        return Intent(self._topic_end_offset(), self._fired_ms, tuple(ranges), is_early)

    def _cancel(self, command: CancelForwarding, token: Token, now_ms: int) -> Outcome:
        if command.due_ms <= now_ms or not self._is_withheld(command.offset, command.due_ms, now_ms):
            refusal = RequestError(ErrorKind.MESSAGE_NOT_DELAYED, "the message is due: it cannot be cancelled any more")
            return Outcome(replies=(Reply(token, refusal),), at_once=True)
        return Outcome((note_record(Cancelled(command.offset)),), (Reply(token, None),))

    def _fire(self, now_ms: int) -> None:
        """Make the records that are due by now ready, in the order of their due times."""
        timers, end = self._timers, (now_ms + 1) << _OFFSET_BITS
        while timers and timers[0] < end and not self.is_full:
            offset = heapq.heappop(timers) & _OFFSET_MASK
            if offset in self._cancelled:
                self._cancelled.discard(offset)
                self._hold(offset, offset + 1, -1)
            else:
                self._ready.append((offset, offset + 1))

    def _is_withheld(self, offset: int, due_ms: int, now_ms: int) -> bool:
        """Return whether a record waits for its due time. One due by `_fired_ms` does if the clock was set back."""
        if due_ms > self._fired_ms:
            return offset not in self._early and not self._is_ready(offset)
        return due_ms > now_ms and due_ms << _OFFSET_BITS | offset in self._timers

    def _is_ready(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._ready)

    def _hold(self, start: int, end: int, sign: int) -> None:
        """Count the records of a run that are still needed, grouped by the region of the run's start."""
        bucket = start >> _BUCKET_BITS
        held = self._held.get(bucket, 0) + sign * (end - start)
        if held:
            self._held[bucket] = held
        else:
            del self._held[bucket]
