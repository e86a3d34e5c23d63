"""What clients were told, and what must therefore be true in the end. Methods may be called from any thread."""

import threading
from collections import defaultdict


class Violation(AssertionError):  # noqa: N818 - named for what it is
    """The cluster has broken a promise."""


class RecordLedger:
    """Numbered records of a topic: who wrote them, where they were acknowledged, and what readers saw."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """Values by (partition, offset)."""
        self.implied: list[tuple[int, bytes]] = []
        """Partitions and values that are stored at offsets which their producers were not told."""
        self.seen: dict[tuple[int, int], bytes] = {}
        self.violations: list[str] = []
        self._lock = threading.Lock()

    def acknowledge(self, partition: int, offset: int | None, value: bytes) -> None:
        """offset: None if the producer knows only that the record is stored. librdkafka concludes it for a batch whose
        outcome was in doubt when the partition acknowledges the next one.
        """
        with self._lock:
            if offset is None:
                self.implied.append((partition, value))
                return
            before = self.acknowledged.setdefault((partition, offset), value)
            if before != value:
                self.violations.append(f"{partition}:{offset} was acknowledged for {before!r} and for {value!r}")

    def see(self, partition: int, offset: int, value: bytes) -> None:
        """A reader has received a record."""
        with self._lock:
            before = self.seen.setdefault((partition, offset), value)
            if before != value:
                self.violations.append(f"{partition}:{offset} was {before!r} for one reader and {value!r} for another")

    def check(self, final: dict[tuple[int, int], bytes]) -> None:
        """Compare with the records that are there in the end. Raises Violation."""
        violations = list(self.violations)
        for kind, told in (("acknowledged", self.acknowledged), ("seen", self.seen)):
            for place, value in told.items():
                if final.get(place) != value:
                    violations.append(f"{kind} {value!r} at {place}; in the end there is {final.get(place)!r}")
        stored = {(partition, value) for (partition, _), value in final.items()}
        violations += [f"{value!r} of {partition} is gone" for partition, value in {*self.implied} - stored]
        places: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for place, value in final.items():
            places[value].append(place)
        violations += [f"{value!r} is there at {found}" for value, found in places.items() if len(found) > 1]
        violations += _disordered(final)
        if violations:
            raise Violation(f"{len(violations)} violations, such as:\n" + "\n".join(violations[:10]))


class DeliveryLedger:
    """Messages that are published, delivered and acknowledged one by one, by their payloads."""

    def __init__(self) -> None:
        self.published: set[str] = set()
        self.delivered: set[str] = set()
        self.violations: list[str] = []
        self._settled: dict[str, float] = {}
        """The time at which the broker had confirmed the acknowledgement."""
        self._unanswered: set[str] = set()
        """Acknowledgements were sent and not answered: the messages may be delivered again, or not."""
        self._lock = threading.Lock()

    def publish(self, payload: str) -> None:
        with self._lock:
            self.published.add(payload)

    def deliver(self, payload: str, asked_at: float) -> None:
        """A consumer has received a message that it asked for at this time."""
        with self._lock:
            self.delivered.add(payload)
            if self._settled.get(payload, asked_at) < asked_at:
                self.violations.append(f"{payload} was delivered after its acknowledgement was confirmed")

    def settle(self, payload: str, now: float) -> None:
        """An acknowledgement was confirmed."""
        with self._lock:
            self._settled.setdefault(payload, now)

    def send_unanswered(self, payload: str) -> None:
        """An acknowledgement was sent, and no answer came."""
        with self._lock:
            self._unanswered.add(payload)

    @property
    def unsettled_count(self) -> int:
        """The number of messages that are certainly not settled."""
        with self._lock:
            return len(self.published - self._settled.keys() - self._unanswered)

    def check(self) -> None:
        """Raises Violation."""
        violations = [
            *self.violations,
            *(f"{payload} was published and never delivered" for payload in sorted(self.published - self.delivered)),
        ]
        if self.unsettled_count:
            violations.append(f"{self.unsettled_count} messages could not be acknowledged")
        if violations:
            raise Violation(f"{len(violations)} violations, such as:\n" + "\n".join(violations[:10]))


def _disordered(final: dict[tuple[int, int], bytes]) -> list[str]:
    """Return where the numbers of a writer fall within a partition. A value is `writer:number`."""
    latest: dict[tuple[int, bytes], int] = defaultdict(lambda: -1)
    found = []
    for (partition, offset), value in sorted(final.items()):
        writer, _, number = value.partition(b":")
        if int(number) <= latest[partition, writer]:
            found.append(f"{value!r} at {partition}:{offset} follows number {latest[partition, writer]}")
        latest[partition, writer] = int(number)
    return found
