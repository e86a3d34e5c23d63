"""Decides when the records of a delayed topic are forwarded: one state machine per partition, with its own log.

    not scanned -> ready                             -> in an intent -> in the target
                -> withheld -(due)-> ready                          -> ready (not carried out)
                -> withheld -> cancelled

Hard state: the offsets that wait, those that are cancelled, and the last intent (`forwarding_records`). An intent is
logged before any of its records is appended to the target, and its successor says how far it was carried out. So at
most one intent is in doubt after a crash, and `target_scan` finds in the target how far it was carried out.

Soft state: the withheld and ready records, which the scan of the delayed topic passes to `take`. The caller that
executes intents asks for the `NextIntent`, and receives it once it is committed. A further request says how much of the
previous intent is committed in the target. Records that become due meanwhile join the next intent. If there is no next
intent soon, one without records states that the last is carried out: the target may delete its records later.

Withheld records wait in a heap of plain integers, about 50 bytes each; a record is read when it is forwarded. Due
records are forwarded in the order of their due times, records without a delay in the order of their offsets.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from conveyor.delay.forwarding_records import (
    SEQUENCES,
    Cancelled,
    Intent,
    Range,
    Snapshot,
    decode,
    divided,
    encode,
)
from conveyor.delay.forwarding_scan import DueRun
from conveyor.delay.waiting_offsets import WaitingOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.heap_search import HeapSearch, SearchedHeap
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import Answer_co, Command, LogRecord, Outcome, Reply, Token

RECORDS_AT_ONCE = 4096

_OFFSET_BITS = 56
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_MAX_READY = 4096
_SETTLE_AFTER_MS = 1_000


class ForwardingCommand(Command[Answer_co], frozen=True):
    """A command to a forwarder's machine."""


class NextIntent(ForwardingCommand[Intent], frozen=True, kw_only=True):
    """Ask for the next intent, as soon as there is one.

    carried_out: the number of offsets of the last intent that are committed in the target; None in the first request.
    log_start_offset: of the delayed topic.
    """

    carried_out: int | None
    log_start_offset: int


class CancelForwarding(ForwardingCommand[None], frozen=True, kw_only=True):
    """Cancel a withheld record, so that it is never forwarded. Refusals: MESSAGE_NOT_DELAYED; COORDINATOR_LOADING if it
    is not scanned yet.
    """

    offset: int

    @property
    def is_repeatable(self) -> bool:
        """Once the record is due, its cancellation is forgotten, and the reply would be MESSAGE_NOT_DELAYED."""
        return False


class TargetView(Protocol):
    """The target's partition, as far as the machine has to know it."""

    @property
    def log_end_offset(self) -> int: ...

    def next_sequence(self, producer_id: int) -> int | None:
        """Return the sequence that the partition accepts from a producer; None if it accepts any."""
        ...

    def may_append(self) -> bool:
        """Return whether records may be forwarded now."""
        ...


class Forwarding:
    """See the module's docstring; for the contract, `conveyor.kernel.state_machine`. Call `begin` after the replay.

    at_once: the most records of one intent, except that a batch forwarded whole is not divided.
    """

    def __init__(self, target: TargetView, at_once: int = RECORDS_AT_ONCE) -> None:
        self.scanned_offset = 0
        self.last_intent: Intent | None = None
        """The only intent that may not be carried out."""
        self.producer_id = -1
        self.work_count = 0
        """The number of records that have become due, and of ranges of intents, so far."""
        self._target = target
        self._at_once = at_once
        self._waiting = WaitingOffsets()
        self._cancelled: set[int] = set()
        self._carried_out = 0
        self._settle_at_ms = 0
        self._ready: deque[Range] = deque()
        self._timers = SearchedHeap()
        self._taker: Token | None = None
        """The caller that waits for the next intent."""

    def reaches_beyond(self, offset: int) -> bool:
        """Return whether there is state about records from an offset on."""
        last = () if self.last_intent is None else self.last_intent.ranges
        offsets = (self._waiting.end_offset - 1, *self._cancelled, *(end - 1 for _, end in last))
        return max(offsets) >= offset

    def begin(self, producer_id: int, carried_out: int, log_start_offset: int, cut_offset: int | None = None) -> None:
        """All records are applied.

        producer_id: for the next intents. carried_out: the number of offsets of the last
        intent that are committed in the target. log_start_offset: of the delayed topic. cut_offset: from there on it
        has other records than those that the state is about. A snapshot is then due before anything else.
        """
        self.producer_id = producer_id
        self._carried_out = carried_out
        self._settle(carried_out)
        if cut_offset is not None:
            self._cut(cut_offset)
        self._waiting.remove_below(log_start_offset)
        self._cancelled = {offset for offset in self._cancelled if offset >= log_start_offset}
        self.scanned_offset = self._waiting.first

    def apply(self, record: LogRecord) -> None:
        match decode(record):
            case Cancelled(offset):
                self._cancelled.add(offset)
            case Intent() as intent:
                self._settle(intent.carried_out)
                self.last_intent, self.producer_id = intent, intent.producer_id
            case Snapshot() as snapshot:
                self.last_intent, self.producer_id = None, snapshot.producer_id
                self._waiting, self._cancelled = snapshot.waiting, set(snapshot.cancelled)

    def snapshot(self) -> Sequence[LogRecord]:
        """Return records that rebuild the hard state from nothing. The last intent stays in doubt."""
        snapshot = Snapshot(producer_id=self.producer_id, waiting=self._waiting, cancelled=[*self._cancelled])
        last = self.last_intent
        if last is None:
            return (encode(snapshot),)
        return encode(snapshot), encode(msgspec.structs.replace(last, carried_out=0))

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        """Does nothing: forwarding takes part in no transaction."""

    def loaded(self, now_ms: int) -> None:
        """Does nothing: `begin` needs facts of the two topics."""

    def clock_set(self, by_ms: int) -> None:
        """Due times are absolute."""
        self._settle_at_ms += by_ms

    def handle(self, command: ForwardingCommand[object], token: Token, now_ms: int) -> Outcome:
        match command:
            case NextIntent():
                return self._take_up(command, token, now_ms)
            case CancelForwarding():
                return self._cancel(command, token, now_ms)
            case _:
                raise AssertionError(f"{command} is not a command of a forwarder")

    def expire(self, now_ms: int) -> Outcome:
        """Also called when `take` has added records."""
        taker = self._taker
        if taker is None or not self._target.may_append():
            return Outcome()
        ranges = self._next_ranges(now_ms)
        if not ranges and not (self._is_in_doubt and now_ms >= self._settle_at_ms):
            return Outcome()
        self._taker = None
        intent = Intent(
            producer_id=self.producer_id,
            sequence=self._next_sequence(),
            target_offset=self._target.log_end_offset,
            carried_out=self._carried_out,
            ranges=ranges,
        )
        return Outcome((encode(intent),), (Reply(taker, intent),))

    def next_deadline_ms(self) -> int | None:
        if self._taker is None or not self._target.may_append():
            return None
        if self._ready:
            return 0
        deadlines = [self._settle_at_ms] if self._is_in_doubt else []
        if self._timers:
            deadlines.append(self._timers[0] >> _OFFSET_BITS)
        return min(deadlines, default=None)

    @property
    def is_full(self) -> bool:
        """True if enough records are ready. Call `take` again when they are forwarded."""
        return len(self._ready) >= _MAX_READY

    def waits(self, start: int, end: int) -> bool:
        """Return whether any offset of [start, end) waits; otherwise its batch need not be scanned."""
        return next(self._waiting.ranges(start, end), None) is not None

    def take(self, runs: Iterable[DueRun], start: int, end: int, now_ms: int) -> None:
        """Add the scanned records of [start, end). The other offsets in between have no records to forward.

        Records that are due by now become ready, after those already ready.
        """
        waiting = self._waiting
        waiting.extend(end)
        for run in runs:
            if start < run.start:
                waiting.remove(start, run.start)
            start = run.end
            if run.due_ms <= now_ms:
                for first, next_offset in waiting.ranges(run.start, run.end):
                    self._make_ready(first, next_offset)
            elif run.start in waiting:
                self._timers.push(run.due_ms << _OFFSET_BITS | run.start)
        waiting.remove(start, end)
        self.scanned_offset = end

    def search(self, after: tuple[int, int], limit: int) -> HeapSearch:
        """Return a search for the first records that are withheld; `place_of` reads what it finds.

        after: a due time and an offset at it, behind which the records are.
        """
        due_ms, offset = after
        return HeapSearch(self._timers, (due_ms << _OFFSET_BITS) + offset, limit, self._is_kept)

    def retain_from_offset(self) -> int:
        """Return the lowest offset of the delayed topic that is still needed."""
        return min(self._waiting.first, self.scanned_offset)

    def _next_sequence(self) -> int:
        """No sequence is used twice, even if the target has forgotten the producer: after a crash it may remember it
        again, and take a batch with the sequences of an earlier one for a repeated one.
        """
        sequence, last = self._target.next_sequence(self.producer_id), self.last_intent
        if sequence is None:
            return 0 if last is None else (last.sequence + last.count) % SEQUENCES
        return sequence

    @property
    def _is_in_doubt(self) -> bool:
        return self.last_intent is not None and bool(self.last_intent.ranges)

    def _take_up(self, command: NextIntent, token: Token, now_ms: int) -> Outcome:
        last = self.last_intent
        if command.carried_out is not None and last is not None:
            self._carried_out = command.carried_out
            _, rest = divided(last.ranges, command.carried_out)
            self._ready.extendleft(reversed(rest))
            self._settle_at_ms = now_ms + _SETTLE_AFTER_MS
        self._waiting.remove_below(command.log_start_offset)
        self._taker = token
        return self.expire(now_ms)

    def _settle(self, carried_out: int) -> None:
        """The first offsets of the last intent are in the target."""
        if self.last_intent is not None:
            for start, end in divided(self.last_intent.ranges, carried_out)[0]:
                self._waiting.remove(start, end)

    def _cut(self, offset: int) -> None:
        """All records from an offset on wait. The last intent may name some of them: nothing of it is in doubt."""
        self._waiting.cut(offset)
        self._cancelled = {cancelled for cancelled in self._cancelled if cancelled < offset}
        self._carried_out, last = 0, self.last_intent
        if last is not None:
            sequence = (last.sequence + last.count) % SEQUENCES
            self.last_intent = msgspec.structs.replace(last, sequence=sequence, ranges=())

    def _next_ranges(self, now_ms: int) -> tuple[Range, ...]:
        """Return the records of the next intent. Those that were deleted meanwhile are none of them."""
        self._fire(now_ms)
        ranges: list[Range] = []
        count = 0
        while self._ready and count < self._at_once:
            for start, end in self._waiting.ranges(*self._ready.popleft()):
                ranges.append((start, end))
                count += end - start
        self.work_count += len(ranges)
        return tuple(ranges)

    def _cancel(self, command: CancelForwarding, token: Token, now_ms: int) -> Outcome:
        self._fire(now_ms)
        if command.offset >= self.scanned_offset:
            reason = "the message is behind an open transaction, or was just published: ask again"
            return _refused(token, RequestError(ErrorKind.COORDINATOR_LOADING, reason))
        if not self._is_withheld(command.offset):
            reason = "the message is due: it cannot be cancelled any more"
            return _refused(token, RequestError(ErrorKind.MESSAGE_NOT_DELAYED, reason))
        return Outcome((encode(Cancelled(command.offset)),), (Reply(token, None),))

    def _fire(self, now_ms: int) -> None:
        """Make the records that are due by now ready, in the order of their due times."""
        timers, end = self._timers, (now_ms + 1) << _OFFSET_BITS
        while timers and timers[0] < end and not self.is_full:
            offset = heapq.heappop(timers) & _OFFSET_MASK
            self.work_count += 1
            if offset in self._waiting:
                self._make_ready(offset, offset + 1)

    def _make_ready(self, start: int, end: int) -> None:
        if start in self._cancelled:  # A cancelled record had a due time of its own, so it is a run of its own.
            self._cancelled.discard(start)
            self._waiting.remove(start, end)
        else:
            self._ready.append((start, end))

    def _is_kept(self, timer: int) -> bool:
        offset = timer & _OFFSET_MASK
        return offset in self._waiting and offset not in self._cancelled

    def _is_withheld(self, offset: int) -> bool:
        """Return whether a record waits, and is neither ready nor in the last intent."""
        last = () if self.last_intent is None else self.last_intent.ranges
        is_taken = any(start <= offset < end for ranges in (last, self._ready) for start, end in ranges)
        return offset in self._waiting and not is_taken


def place_of(timer: int) -> tuple[int, int]:
    """Return the due time and the offset of a record that a search has found."""
    return timer >> _OFFSET_BITS, timer & _OFFSET_MASK


def _refused(token: Token, refusal: RequestError) -> Outcome:
    return Outcome(replies=(Reply(token, refusal),), at_once=True)
