"""What was promised to the clients of a simulated broker, compared with what they see later.

Invariants, by the name that a failure gives:

    NoAcknowledgedLoss       a record acknowledged with acks=all is read at its offset, whatever failed in between
    NothingTakenBack         a record that was read has the same value at every later read
    MonotonicHighWatermark   the high watermark of a partition whose policy is `ack` never goes back
    OrderedOnce              records of an idempotent producer lie in their order, none of them twice
    LatestSurvives           of each key of a compacted topic, the latest acknowledged value or a later one is there
    CommittedOffsetsHold     a group is given the offset that it committed last, or one whose commit got no reply
    NoDoubleLease            a message is not leased while another lease of it holds
    NoResurrectedAck         a message whose ack was confirmed is never leased again
    NotBeforeItIsDue         a delayed message is neither leased nor read before it is due
    EveryDelayFiresOnce      a record of a topic with `delay.enable` lies in its topic exactly once in the end
    NoMessageForgotten       a message of a queue is leased at least once before the queue is empty
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Place = tuple[str, int]
"""A topic and a partition."""


class InvariantBroken(AssertionError):  # noqa: N818 - named for what it is
    """The broker broke a promise. `invariant`: its name in the module's docstring."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


@dataclass(slots=True)
class _Partition:
    """acknowledged: by acks=all. readable_from: what is before was deleted on request."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)
    high_watermark: int = 0
    readable_from: int = 0


class LogLedger:
    """Records of plain topics: acknowledged by offset, and read by offset."""

    def __init__(self) -> None:
        self._partitions: dict[Place, _Partition] = {}

    def places(self) -> list[Place]:
        return sorted(self._partitions)

    def of(self, place: Place) -> _Partition:
        return self._partitions.setdefault(place, _Partition())

    def acknowledge(self, place: Place, base_offset: int, values: Sequence[bytes]) -> None:
        """A producer was told that its batch lies there."""
        for offset, value in enumerate(values, base_offset):
            self._compare(
                "NoAcknowledgedLoss", place, offset, self.of(place).acknowledged.setdefault(offset, value), value
            )
            self._compare("NothingTakenBack", place, offset, self.of(place).seen.get(offset, value), value)

    def delete_before(self, place: Place, offset: int) -> None:
        """DeleteRecords was sent: what is below may be gone from now on."""
        partition = self.of(place)
        partition.readable_from = max(partition.readable_from, offset)

    def read(self, place: Place, start: int, records: Sequence[tuple[int, bytes]], high_watermark: int) -> None:
        """A consumer that read from `start` on was given these records."""
        partition = self.of(place)
        if high_watermark < partition.high_watermark:
            raise InvariantBroken(
                "MonotonicHighWatermark", f"{place}: {high_watermark} after {partition.high_watermark}"
            )
        partition.high_watermark = high_watermark
        found = dict(records)
        end = max(found, default=start - 1) + 1
        for offset, value in records:
            self._compare("NothingTakenBack", place, offset, partition.seen.setdefault(offset, value), value)
        for offset in range(max(start, partition.readable_from), end):
            if offset in partition.acknowledged:
                self._compare("NoAcknowledgedLoss", place, offset, found.get(offset), partition.acknowledged[offset])

    def check_end(self, place: Place, end_offset: int) -> None:
        """The partition was read up to its end: nothing that was acknowledged lies behind it."""
        last = max(self.of(place).acknowledged, default=-1)
        if last >= end_offset:
            raise InvariantBroken("NoAcknowledgedLoss", f"{place} ends at {end_offset}, acknowledged was {last}")

    @staticmethod
    def _compare(invariant: str, place: Place, offset: int, found: bytes | None, expected: bytes) -> None:
        if found != expected:
            raise InvariantBroken(invariant, f"{place} offset {offset} holds {found!r}, not {expected!r}")


def check_ordered_once(place: Place, records: Sequence[tuple[int, bytes]]) -> None:
    """Values are `<producer>:<sequence>`; of each producer they rise."""
    newest: dict[bytes, int] = {}
    for offset, value in records:
        producer, _, sequence = value.partition(b":")
        if int(sequence) <= newest.get(producer, -1):
            raise InvariantBroken("OrderedOnce", f"{place} offset {offset} holds {value!r} after {newest[producer]}")
        newest[producer] = int(sequence)


def check_latest_survives(acknowledged: Mapping[bytes, int], found: Mapping[bytes, int]) -> None:
    """acknowledged, found: by key, the number of its latest value; numbers of a key rise."""
    for key, number in acknowledged.items():
        if found.get(key, -1) < number:
            raise InvariantBroken("LatestSurvives", f"key {key!r} has {found.get(key)}, acknowledged was {number}")


class OffsetLedger:
    """Offsets that one group commits for one partition, rising."""

    def __init__(self) -> None:
        self._confirmed = -1
        self._unconfirmed: list[int] = []

    def attempt(self, offset: int) -> None:
        self._unconfirmed.append(offset)

    def confirm(self, offset: int) -> None:
        self._confirmed = max(self._confirmed, offset)

    def check(self, offset: int) -> None:
        """The group was told that it has committed this offset (-1: none)."""
        possible = {self._confirmed, *(each for each in self._unconfirmed if each > self._confirmed)}
        if offset not in possible:
            raise InvariantBroken("CommittedOffsetsHold", f"the offset is {offset}, possible are {sorted(possible)}")
        self._confirmed = offset


@dataclass(frozen=True, slots=True)
class _Held:
    ends_ms: int
    incarnation: int


class QueueLedger:
    """The messages of one subscription. steady_ms: monotonic time. now_ms: the latest
    that the wall clock has shown. incarnation: how often the broker was started."""

    def __init__(self) -> None:
        self.published: dict[str, int] = {}
        """Message ids that were acknowledged to the publisher, and when each is due."""
        self.leased: set[str] = set()
        self._acked: set[str] = set()
        self._held: dict[str, _Held] = {}

    def lease(self, message_id: str, now_ms: int, steady_ms: int, visibility_ms: int, incarnation: int) -> None:
        """A worker was given a message; the lease is a duration, in which the wall clock may be set."""
        if message_id in self._acked:
            raise InvariantBroken("NoResurrectedAck", f"message {message_id} was acknowledged")
        held = self._held.get(message_id)
        if held is not None and held.incarnation == incarnation and held.ends_ms > steady_ms:
            raise InvariantBroken("NoDoubleLease", f"message {message_id} is leased for {held.ends_ms - steady_ms} ms")
        if self.published.get(message_id, 0) > now_ms:
            raise InvariantBroken("NotBeforeItIsDue", f"message {message_id} at {now_ms}")
        self._held[message_id] = _Held(steady_ms + visibility_ms, incarnation)
        self.leased.add(message_id)

    def release(self, message_id: str) -> None:
        """A worker is about to settle the lease: another may be given from now on."""
        self._held.pop(message_id, None)

    def ack(self, message_id: str) -> None:
        """A worker's ack was confirmed."""
        self._acked.add(message_id)

    def check_drained(self) -> None:
        """Nothing is left in the queue."""
        forgotten = sorted(set(self.published) - self.leased)
        if forgotten:
            raise InvariantBroken(
                "NoMessageForgotten", f"messages {forgotten[:5]} of {len(forgotten)} were never leased"
            )


class DelayLedger:
    """Records that were published to a topic with `delay.enable`."""

    def __init__(self) -> None:
        self.due_ms: dict[bytes, int] = {}
        """When each value is due at the earliest."""
        self.acknowledged: set[bytes] = set()

    def check(self, values: Sequence[bytes], now_ms: int) -> None:
        """These lie in the topic now."""
        if len(set(values)) < len(values):
            raise InvariantBroken("EveryDelayFiresOnce", "a value lies in the topic twice")
        early = [value for value in values if self.due_ms[value] > now_ms]
        if early:
            raise InvariantBroken("NotBeforeItIsDue", f"{early[0]!r} at {now_ms}")

    def check_all(self, values: Sequence[bytes]) -> None:
        """Everything is due: these lie in the topic."""
        missing = sorted(self.acknowledged - set(values))
        if missing:
            raise InvariantBroken("EveryDelayFiresOnce", f"{missing[0]!r} and {len(missing) - 1} others are missing")
