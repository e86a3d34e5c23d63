"""A client that publishes messages which are larger than any request of Kafka's protocol may be."""

from contextlib import suppress

from conveyor.kernel.errors import RequestError
from simulation.cluster.fault_counts import FaultCounts
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.rest_requests import publish_all
from simulation.ledger import LogLedger
from simulation.story_schedule import Step
from simulation.troubles import BULK_BYTES, BULK_TOPIC


class BulkPublisher:
    """Publishes one message in each step, once, over REST through any broker."""

    def __init__(self, ledger: LogLedger, counts: FaultCounts) -> None:
        self._ledger = ledger
        self._counts = counts
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        value = f"bulk:{self._count}".ljust(BULK_BYTES)
        self._count += 1
        with suppress(Disconnected, RequestError):
            (answer,) = await publish_all(door.any(), BULK_TOPIC, [value])
            if isinstance(answer, str):
                partition, offset = map(int, answer.split("-"))
                self._counts.note("bulky message acknowledged")
                self._ledger.acknowledge((BULK_TOPIC, partition), offset, [value.encode()])
