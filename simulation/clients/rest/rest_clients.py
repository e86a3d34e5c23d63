"""Clients that publish and process messages over REST. They ask any broker, which passes requests on to leaders.

publish     one message, or a batch for several partitions. Some messages have an id for deduplication, and their
            client repeats the request until it has an answer; it sends all others once
transact    lease messages; in one transaction publish a result for each to two topics, and acknowledge them all.
            The client repeats the request with its id, for some seconds
pipeline    several requests on one connection before the first answer, whose answers come in their order
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from simulation.clients.cluster_queue import ClusterQueueLedger, ClusterWorker
from simulation.clients.rest.rest_promises import RestPromises, RestTransaction
from simulation.clients.transactions.committed_reader import committed
from simulation.clients.transactions.transaction_promises import TransactionPromises
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import fetch
from simulation.doors.rest_link import RestAnswer
from simulation.doors.rest_requests import (
    ClientLease,
    publish_all,
    publish_one,
    run_transaction,
    unsettled_count,
)
from simulation.ledger import InvariantBroken, Place
from simulation.story_schedule import Step
from simulation.story_topics import PARTITIONS
from simulation.troubles import REST_IN, REST_OUT, REST_TOPICS

REST_SUBSCRIPTION = "rest-workers"
"""The subscription of REST_IN, which is created before the story begins."""

_ABSENT = "/topics/absent-"
_NO_REPLY = (Disconnected, RequestError)
_PATIENCE_S = 5.0
_RETRY_S = 0.1
_DRAIN_EACH_S = 0.5
_DECIDED_WITHIN_S = 40.0
"""A transaction of a request times out after 10 s, and a coordinator must be found again."""


class RestClients:
    """See the module's docstring. clients: by the name of the actor."""

    def __init__(self, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._promises = RestPromises(self._is_excused)
        ledger = ClusterQueueLedger(self._is_excused, cluster.latest_at)
        workers = [
            RestWorker(f"t{number}", ClusterWorker(ledger, cluster, REST_IN, REST_SUBSCRIPTION), self._promises, counts)
            for number in (1, 2)
        ]
        self._last = ClusterWorker(ledger, cluster, REST_IN, REST_SUBSCRIPTION)
        self.clients: dict[str, RestPublisher | RestWorker] = {
            "rest-publisher": RestPublisher(self._promises, counts),
            "rest-worker-1": workers[0],
            "rest-worker-2": workers[1],
        }

    async def check_the_end(self, door: ClientDoor) -> None:
        """Read everything, drain the queue, and compare. All brokers run."""
        self._promises.check_published(await self._read_all(door, [REST_IN]))
        found = await self._read_all(door, REST_OUT)
        self._promises.check_transactions(found)
        self._promises.check_processed(found, await self._drain(door))

    async def _drain(self, door: ClientDoor) -> list[str]:
        """Settle the messages that are left, and return their ids."""
        left: list[str] = []
        while True:
            with suppress(*_NO_REPLY):
                if not await unsettled_count(door.any(), REST_SUBSCRIPTION):
                    return left
            await self._last.lease(door, 7)
            left += [lease.message_id for lease in self._last.leases]
            await self._last.settle_all(door)
            await asyncio.sleep(_DRAIN_EACH_S)

    async def _read_all(self, door: ClientDoor, topics: Sequence[str]) -> list[bytes]:
        """Return the committed values of topics."""
        places = [(topic, number) for topic in topics for number in range(PARTITIONS)]
        return [value for place in places for value in await self._read(door, place)]

    async def _read(self, door: ClientDoor, place: Place) -> list[bytes]:
        values: list[bytes] = []
        position, promises, loop = 0, TransactionPromises(self._is_excused), asyncio.get_running_loop()
        ends_s = loop.time() + _DECIDED_WITHIN_S
        while True:
            try:
                fetched = await fetch(await door.leader(place), place, position, reads_committed=True)
            except _NO_REPLY:
                continue
            if fetched.error is not None:
                await asyncio.sleep(_DRAIN_EACH_S)
                continue
            found = committed(promises, place, position, fetched)
            values += [value.strip(b'"') for value in found.visible.values()]
            is_stable = fetched.last_stable_offset == fetched.high_watermark
            if found.next_offset == position and is_stable:
                return values
            if loop.time() > ends_s:
                detail = f"{place} is stable to {fetched.last_stable_offset} of {fetched.high_watermark}"
                promises.broken("StableOffsetRises", detail)
                return values
            position = found.next_offset
            await asyncio.sleep(0 if is_stable else _DRAIN_EACH_S)

    def _is_excused(self) -> bool:
        places = [(topic, number) for topic in REST_TOPICS for number in range(PARTITIONS)]
        replicas = self._cluster.replicas
        return any(replicas.is_excused(TopicPartition(*place)) for place in (*places, (TRANSACTIONS_TOPIC, 0)))


class RestPublisher:
    """Publishes messages; see the module's docstring."""

    def __init__(self, promises: RestPromises, counts: FaultCounts) -> None:
        self._promises = promises
        self._counts = counts
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        with suppress(*_NO_REPLY):
            if step.action == "pipeline":
                return await self._pipeline(door)
            values = self._values(1 + step.number % 3)
            if step.number % 2:
                return await self._insist(door, values)
            if len(values) > 1:
                answers = await publish_all(door.any(), REST_IN, values)
            else:
                answers = [await publish_one(door.any(), REST_IN, values[0])]
            self._acknowledged(values, answers)

    async def _insist(self, door: ClientDoor, values: Sequence[str]) -> None:
        """Repeat a request until there is an answer, for some seconds. Its messages have ids."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _PATIENCE_S
        while loop.time() < ends_s:
            with suppress(*_NO_REPLY):
                answers = await publish_all(door.any(), REST_IN, values, dedup_ids=values)
                self._acknowledged(values, answers)
                if not any(isinstance(answer, RequestError) for answer in answers):
                    return
            await asyncio.sleep(_RETRY_S)

    async def _pipeline(self, door: ClientDoor) -> None:
        """Send several requests at once, and look whether each has its own answer."""
        link = await door.any().rest_link()
        values = self._values(3)
        sent: list[tuple[str, asyncio.Future[RestAnswer]]] = [
            (path, link.send(method, path, document))
            for value in values
            for method, path, document in (
                ("POST", f"/topics/{REST_IN}/messages", value),
                ("GET", f"{_ABSENT}{value.replace(':', '-')}", None),
            )
        ]
        self._counts.note("rest requests pipelined")
        for path, reply in sent:
            answer = await reply
            is_unknown = answer.document.get("kind") == "unknown_topic"
            names_it = path.rpartition("/")[2] in answer.document.get("detail", "")
            is_receipt = "message_id" in answer.document
            if (is_receipt and path.startswith(_ABSENT)) or (is_unknown and not names_it):
                raise InvariantBroken("AnswersInOrder", f"{path} is answered by {answer}")

    def _acknowledged(self, values: Sequence[str], answers: Sequence[str | RequestError]) -> None:
        for value, answer in zip(values, answers, strict=True):
            if isinstance(answer, str):
                self._promises.acknowledged[value.encode()] = answer

    def _values(self, size: int) -> list[str]:
        numbers = range(self._count, self._count + size)
        self._count += size
        return [f"p:{number}" for number in numbers]


class RestWorker:
    """Processes messages; see the module's docstring. name: of its transactions; unique."""

    def __init__(self, name: str, worker: ClusterWorker, promises: RestPromises, counts: FaultCounts) -> None:
        self._name = name
        self._worker = worker
        self._promises = promises
        self._counts = counts
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        if not await self._worker.lease(door, step.number):
            return
        leases = self._worker.take_all()
        self._count += 1
        name = f"{self._name}-{self._count}"
        values = [f"{name}:{number}".encode() for number in range(1 + len(leases))]
        transaction = RestTransaction(name, values, [lease.message_id for lease in leases])
        self._promises.transactions.append(transaction)
        await self._run(door, transaction, leases)

    async def _run(self, door: ClientDoor, transaction: RestTransaction, leases: Sequence[ClientLease]) -> None:
        """Repeat the request until its outcome is known, for some seconds."""
        loop = asyncio.get_running_loop()
        ends_s, is_in_doubt = loop.time() + _PATIENCE_S, False
        messages = [(REST_OUT[place % 2], value.decode()) for place, value in enumerate(transaction.values)]
        ack_ids = [lease.ack_id for lease in leases]
        while loop.time() < ends_s:
            self._worker.release(leases)
            try:
                await run_transaction(door.any(), transaction.name, messages, REST_SUBSCRIPTION, ack_ids)
            except Disconnected:
                is_in_doubt = True
            except RequestError as error:
                is_in_doubt |= error.kind in (ErrorKind.TRANSACTION_OUTCOME_UNKNOWN, ErrorKind.REQUEST_TIMED_OUT)
                if not ERRORS[error.kind].retriable:
                    self._counts.note("rest transaction refused")
                    transaction.outcome = None if is_in_doubt else False
                    return
            else:
                self._counts.note("rest transaction committed")
                transaction.outcome = True
                return self._worker.acknowledged(leases)
            await asyncio.sleep(_RETRY_S)
