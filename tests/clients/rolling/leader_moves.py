"""What every client has to get right while leaders and coordinators move.

A producer sends numbered records, and a member of a group reads and commits them. In the end every record is there
once, in order, and the member has neither skipped a record nor gone back behind its commits.
"""

from collections import defaultdict

from tests.clients.programs import Line, Program
from tests.clients.rebalances import is_assignment, is_record, number_read
from tests.clients.scenarios import commit_start, lines_of, make_topic

SESSION_MS = 30_000
_FINISH_S = 180
_MOST_STRAYS = 2
"""How often librdkafka may stray: it is rare."""


class Reading:
    """The lines of a group's only member, checked in their order."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = defaultdict(int)
        self.refused: list[str] = []
        self.strayed: list[list[str]] = []
        """See `StrayPartitions`."""
        self.numbers: dict[int, list[int]] = defaultdict(list)
        """The record numbers of each partition by offset."""
        self._positions: dict[int, int] = {}

    def take(self, line: Line) -> None:
        if is_assignment(line):
            self._positions.clear()
        elif "committed" in line:
            for partition, offset in line["committed"].items():
                self._commit(int(partition), offset)
        elif "refused" in line:
            assert line["retriable"], line
            self.refused.append(line["refused"])
        elif "strayed" in line:
            self.strayed.append(line["strayed"])
            assert len(self.strayed) <= _MOST_STRAYS, self.strayed
        elif is_record(line):
            self._read(line["partition"], line["offset"], number_read(line))

    def _commit(self, partition: int, offset: int) -> None:
        assert self.committed[partition] <= offset <= len(self.numbers[partition]), (
            f"{offset} committed of partition {partition} after {self.committed[partition]}"
        )
        self.committed[partition] = offset

    def _read(self, partition: int, offset: int, number: int) -> None:
        numbers = self.numbers[partition]
        lowest = highest = self._positions.get(partition)
        if highest is None:
            lowest, highest = self.committed[partition], len(numbers)
        assert lowest is not None
        assert lowest <= offset <= highest, f"{partition}:{offset} read instead of {lowest} to {highest}"
        self._positions[partition] = offset + 1
        if offset < len(numbers):
            assert numbers[offset] == number, f"{partition}:{offset} was {numbers[offset]} and is {number}"
        else:
            numbers.append(number)


class LeaderMoves:
    """One client's producer and consumer."""

    def __init__(self, program: Program, bootstrap: str, topic: str, protocol: str) -> None:
        make_topic(bootstrap, topic)
        commit_start(bootstrap, topic)
        self._topic = topic
        self._producer = program.start("produce", bootstrap, topic, "none")
        self._member = program.start("member", bootstrap, topic, topic, protocol, SESSION_MS)
        self._count = 0

    def send(self, count: int) -> None:
        """Give the producer some more records."""
        self._producer.give(lines_of(range(self._count, self._count + count)))
        self._count += count

    def finish(self) -> Reading:
        """Wait until all records are acknowledged and read. Returns what was read. Raises AssertionError."""
        self._producer.finish()
        reading, taken = Reading(), 0

        def has_all(_: Line) -> bool:
            nonlocal taken
            for line in self._member.seen[taken:]:
                reading.take(line)
            taken = len(self._member.seen)
            return sum(map(len, reading.numbers.values())) >= self._count

        self._member.until(has_all, _FINISH_S)
        self._member.finish()
        has_all({})
        check_numbers(reading.numbers, self._count)
        return reading

    def kill(self) -> None:
        self._producer.kill()
        self._member.kill()


def check_numbers(numbers: dict[int, list[int]], count: int) -> None:
    """Each number is in one partition, once, and after the lower numbers there."""
    for partition, found in numbers.items():
        assert found == sorted(found), f"partition {partition} is not in order"
    assert sorted(number for found in numbers.values() for number in found) == list(range(count))
