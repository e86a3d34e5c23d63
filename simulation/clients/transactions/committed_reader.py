"""Readers with `isolation.level=read_committed`. They skip aborted records as Kafka's clients do: by the list of
aborted transactions that comes with the records, and the markers among them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from conveyor.kernel.errors import RequestError
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.record import decode_records
from conveyor.records.transaction_marker import is_marker
from simulation.clients.transactions.transaction_promises import TransactionPromises
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import FetchedFrom, fetch
from simulation.ledger import Place
from simulation.story_schedule import Step

_READ_BYTES = (400, 4_000, 1 << 16)
_LONGEST_WAIT_MS = 1_000


class CommittedRead(NamedTuple):
    """The records of one fetch that a client passes on, by offset, and the next offset that it fetches."""

    visible: dict[int, bytes]
    next_offset: int


class CommittedReader:
    """Reads partitions from its own positions, and sometimes again from the start."""

    def __init__(self, places: Sequence[Place], promises: TransactionPromises) -> None:
        self._places = places
        self._promises = promises
        self._positions = dict.fromkeys(places, 0)

    async def execute(self, step: Step, door: ClientDoor) -> None:
        place, number = self._places[step.number % len(self._places)], step.number // len(self._places)
        if number % 8 == 0:
            self._positions[place] = 0
        start, max_bytes = self._positions[place], _READ_BYTES[number // 8 % len(_READ_BYTES)]
        try:
            leader = await door.leader(place)
            wait_ms = number % _LONGEST_WAIT_MS
            fetched = await fetch(leader, place, start, wait_ms=wait_ms, max_bytes=max_bytes, reads_committed=True)
        except (Disconnected, RequestError):
            return
        if fetched.error is None:
            found = committed(self._promises, place, start, fetched)
            self._promises.read(place, found.visible, range(start, found.next_offset))
            self._positions[place] = found.next_offset


async def read_to_the_end(door: BrokerDoor, place: Place, promises: TransactionPromises) -> dict[int, bytes]:
    """Read all committed records of a partition. Raises Disconnected, RequestError."""
    values: dict[int, bytes] = {}
    position = 0
    while True:
        fetched = await fetch(door, place, position, max_bytes=_READ_BYTES[-1], reads_committed=True)
        if fetched.error is not None:
            raise fetched.error
        found = committed(promises, place, position, fetched)
        promises.read(place, found.visible, range(position, found.next_offset))
        if found.next_offset == position:
            return values
        values |= found.visible
        position = found.next_offset


def committed(promises: TransactionPromises, place: Place, start: int, fetched: FetchedFrom) -> CommittedRead:
    """Return what a client passes on from a fetch at an offset. Raises InvariantBroken (NoOffsetSkipped)."""
    waiting = sorted((first_offset, producer_id) for producer_id, first_offset in fetched.aborted)
    aborting: set[int] = set()
    visible: dict[int, bytes] = {}
    following = start
    for header, batch in fetched.batches():
        if header.base_offset > following or header.next_offset > fetched.last_stable_offset:
            promises.broken(
                "NoOffsetSkipped",
                f"{place}: a batch from {header.base_offset} to {header.next_offset} was read at {following}; the last"
                f" stable offset is {fetched.last_stable_offset}",
            )
        while waiting and waiting[0][0] < header.next_offset:
            aborting.add(waiting.pop(0)[1])
        following = max(following, header.next_offset)
        if is_marker(header):
            aborting.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in aborting):
            visible |= {
                record.offset: record.value or b"" for record in decode_records(batch) if record.offset >= start
            }
    return CommittedRead(visible, following)
