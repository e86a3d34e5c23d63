"""The promises made to the clients of a simulated broker, compared with later replies.

Invariants, by the names that failures report:

    NoAcknowledgedLoss       a record acknowledged with acks=all is read at its offset, despite all failures
    NothingTakenBack         a record that was read has the same value at every later read
    MonotonicHighWatermark   the high watermark of a partition whose policy is `ack` never goes back
    OrderedOnce              an idempotent producer's records are in order, without duplicates
    CommittedOffsetsHold     a group fetches its last committed offset, or one whose commit got no reply
    NotBeforeItIsDue         a delayed message is neither leased nor read before it is due
    EveryDelayFiresOnce      a record of a delayed topic is in its target exactly once at the end
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Place = tuple[str, int]
"""A topic and a partition number."""


class InvariantBroken(AssertionError):  # noqa: N818 - named for what it is
    """The broker broke an invariant. invariant: its name in the module's docstring."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


@dataclass(slots=True)
class _Partition:
    """acknowledged: with acks=all. readable_from: earlier records were deleted on request. is_excused: its records may
    be lost.
    """

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)
    high_watermark: int = 0
    readable_from: int = 0
    is_excused: bool = False


class LogLedger:
    """The records of plain topics: acknowledged by offset, and read by offset.

    has_failovers: a leader that has just been elected may report a lower high watermark than the previous leader.
    """

    def __init__(self, *, has_failovers: bool = False) -> None:
        self._has_failovers = has_failovers
        self._partitions: dict[Place, _Partition] = {}

    def places(self) -> list[Place]:
        return sorted(self._partitions)

    def of(self, place: Place) -> _Partition:
        return self._partitions.setdefault(place, _Partition())

    def acknowledge(self, place: Place, base_offset: int, values: Sequence[bytes]) -> None:
        """Check and note that a batch was acknowledged at an offset."""
        if self.of(place).is_excused:
            return
        for offset, value in enumerate(values, base_offset):
            self._compare(
                "NoAcknowledgedLoss", place, offset, self.of(place).acknowledged.setdefault(offset, value), value
            )
            self._compare("NothingTakenBack", place, offset, self.of(place).seen.get(offset, value), value)

    def excuse(self, place: Place) -> None:
        """Note that all replicas with the records of a partition have lost them: nothing is promised any more."""
        self._partitions[place] = _Partition(is_excused=True)

    def delete_before(self, place: Place, offset: int) -> None:
        """Note a DeleteRecords request: records below the offset may be deleted from now on."""
        partition = self.of(place)
        partition.readable_from = max(partition.readable_from, offset)

    def read(self, place: Place, start: int, records: Sequence[tuple[int, bytes]], high_watermark: int) -> None:
        """Check the records that a consumer read from `start` on."""
        partition = self.of(place)
        if partition.is_excused:
            return
        if high_watermark < partition.high_watermark and not self._has_failovers:
            raise InvariantBroken(
                "MonotonicHighWatermark", f"{place}: {high_watermark} after {partition.high_watermark}"
            )
        partition.high_watermark = max(partition.high_watermark, high_watermark)
        values = dict(records)
        end = max(values, default=start - 1) + 1
        for offset, value in records:
            self._compare("NothingTakenBack", place, offset, partition.seen.setdefault(offset, value), value)
        for offset in range(max(start, partition.readable_from), end):
            if offset in partition.acknowledged:
                self._compare("NoAcknowledgedLoss", place, offset, values.get(offset), partition.acknowledged[offset])

    def check_end(self, place: Place, end_offset: int) -> None:
        """Check that no acknowledged record is at or after the end of the partition."""
        last = max(self.of(place).acknowledged, default=-1)
        if last >= end_offset:
            raise InvariantBroken(
                "NoAcknowledgedLoss", f"{place} ends at {end_offset}, but offset {last} was acknowledged"
            )
        last = max(self.of(place).seen, default=-1)
        if last >= end_offset:
            raise InvariantBroken("NothingTakenBack", f"{place} ends at {end_offset}, but offset {last} was read")

    @staticmethod
    def _compare(invariant: str, place: Place, offset: int, found: bytes | None, expected: bytes) -> None:
        if found != expected:
            raise InvariantBroken(invariant, f"{place} offset {offset} holds {found!r}, not {expected!r}")


def check_ordered_once(place: Place, records: Sequence[tuple[int, bytes]]) -> None:
    """Check values of the form `<producer>:<sequence>`: each producer's sequences must rise."""
    newest: dict[bytes, int] = {}
    for offset, value in records:
        producer, _, sequence = value.partition(b":")
        if int(sequence) <= newest.get(producer, -1):
            raise InvariantBroken("OrderedOnce", f"{place} offset {offset} holds {value!r} after {newest[producer]}")
        newest[producer] = int(sequence)


class OffsetLedger:
    """The rising offsets that one group commits for one partition.

    A commit without a reply may happen late, but not after a newer one that was acknowledged: its client has closed the
    connection before it sent the newer one, so the broker drops what it has not begun.
    """

    def __init__(self) -> None:
        self._confirmed = -1
        self._unconfirmed: list[int] = []

    def attempt(self, offset: int) -> None:
        self._unconfirmed.append(offset)

    def confirm(self, offset: int) -> None:
        self._confirmed = max(self._confirmed, offset)

    def check(self, offset: int) -> None:
        """Check the committed offset that the group fetched (-1: none)."""
        possible = {self._confirmed, *(attempted for attempted in self._unconfirmed if attempted > self._confirmed)}
        if offset not in possible:
            raise InvariantBroken("CommittedOffsetsHold", f"the offset is {offset}, possible are {sorted(possible)}")
        self._confirmed = offset


class DelayLedger:
    """The records published to a delayed topic, and by another producer to its target, due at once."""

    def __init__(self) -> None:
        self.due_ms: dict[bytes, int] = {}
        """The earliest due time of each value."""
        self.acknowledged: set[bytes] = set()

    def check(self, values: Sequence[bytes], now_ms: int) -> None:
        """Check the values that are in the target now."""
        if len(set(values)) < len(values):
            raise InvariantBroken("EveryDelayFiresOnce", "a value is in the target twice")
        early = [value for value in values if self.due_ms[value] > now_ms]
        if early:
            raise InvariantBroken("NotBeforeItIsDue", f"{early[0]!r} at {now_ms}")

    def check_all(self, values: Sequence[bytes]) -> None:
        """Check the values in the target once all are due."""
        missing = sorted(self.acknowledged - set(values))
        if missing:
            raise InvariantBroken("EveryDelayFiresOnce", f"{missing[0]!r} and {len(missing) - 1} others are missing")
