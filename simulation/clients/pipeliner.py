"""A client that sends many requests on one connection before the first answer. See AnswersInOrder in `kafka_link`.

Its batches for a partition are appended in their order, whatever their acks, as the ledgers check by their values.
"""

import asyncio
from contextlib import suppress
from typing import Any

from conveyor.broker.produce.publisher import ACKS_ALL, ACKS_LEADER
from conveyor.records.record import encode_batch
from simulation.cluster.fault_counts import FaultCounts
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import fetch_body, produce_body, published_at
from simulation.ledger import LogLedger
from simulation.story_schedule import Step
from simulation.story_topics import LOG_TOPIC, PARTITIONS

_LONGEST_S = 10.0
_WAIT_MS = 400
_MOST = 5


class Pipeliner:
    def __init__(self, ledger: LogLedger, counts: FaultCounts) -> None:
        self._ledger = ledger
        self._counts = counts
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        place, number = (LOG_TOPIC, step.number % PARTITIONS), step.number // PARTITIONS
        with suppress(Disconnected, TimeoutError):
            link = await (await door.leader(place)).kafka_link()
            replies: list[tuple[bytes, int, asyncio.Future[Any]]] = []
            for index in range(2 + number % _MOST):
                value, acks = b"pipe:%d" % self._count, ACKS_LEADER if number >> index & 1 else ACKS_ALL
                self._count += 1
                batch = encode_batch([(door.clock.now_ms(), None, value, ())])
                replies.append((value, acks, link.send(0, 9, produce_body(*place, batch, acks))))
                if index == number % 3:
                    link.send(1, 12, fetch_body(place, self._ledger.of(place).high_watermark, wait_ms=_WAIT_MS))
            self._counts.note("requests pipelined")
            async with asyncio.timeout(_LONGEST_S):
                for value, acks, reply in replies:
                    published = published_at((await reply).responses[0].partition_responses[0])
                    if published.error is None and acks == ACKS_ALL:
                        self._ledger.acknowledge(place, published.base_offset, [value])
