"""Plays a schedule with one broker, three or five: one story of brokers and their clients, with its final checks.

After the last step all faults end and all brokers run. Within 30 seconds every partition is led and has all replicas in
sync; then everything is read to its end, and the logs of all replicas are compared. Steps of actors whose topic the
story does not have are left out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Protocol, TypeVar

from conveyor.broker.produce.publisher import ACKS_LEADER
from conveyor.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from simulation.clients.actors import Committer, DelayPublisher, Producer, QueuePublisher, Reader
from simulation.clients.churn.churn_ledger import CHURNED, DELAYED, ChurnLedger
from simulation.clients.churn.topic_admin import TopicAdmin
from simulation.clients.churn.topic_user import TopicUser
from simulation.clients.cluster_clients import ClusterOffsets, ClusterOperator, EndWatcher
from simulation.clients.cluster_queue import ClusterQueueLedger, ClusterWorker
from simulation.clients.deletions import RecordDeleter
from simulation.clients.groups.cluster_groups import ClusterGroups
from simulation.clients.keys.ordered_keys_clients import ORDERED_POLICY, ORDERED_SUBSCRIPTION, OrderedKeysClients
from simulation.clients.pipelined_producer import PipelinedProducer
from simulation.clients.pipeliner import Pipeliner
from simulation.clients.policy_operator import LateHardening, PolicyOperator
from simulation.clients.progress_check import ProgressCheck
from simulation.clients.pushes import PUSH_POLICY, PUSH_SUBSCRIPTION, Pushes, PushLedger, SimulatedTarget
from simulation.clients.queue_inspector import QueueInspector
from simulation.clients.rest.bulk_publisher import BulkPublisher
from simulation.clients.rest.rest_clients import REST_SUBSCRIPTION, RestClients
from simulation.clients.table_writer import TableWriter
from simulation.clients.transactions.cluster_transactions import ClusterTransactions
from simulation.clients.users.audit_promise import AuditPromise
from simulation.clients.users.rest_users import GUARDED_SUBSCRIPTION
from simulation.clients.users.user_clients import permit_group, user_clients
from simulation.cluster.cluster_checks import check_images, check_logs, committed_values, unsettled
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.retention_watch import RetentionWatch
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.cluster.stamp_watch import StampWatch
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import create_topic, fetch
from simulation.doors.rest_requests import create_subscription, unsettled_count
from simulation.faults.ambushes import Ambushes
from simulation.faults.bit_flips import BitFlips
from simulation.faults.cluster_faults import BrokerFaults, MachineFaults, NetworkFaults
from simulation.faults.data_faults import DataFaults
from simulation.faults.stale_copies import StaleCopies
from simulation.faults.store_faults import STORE_FAULTS, StoreFaults
from simulation.faults.wall_clocks import ClockFaults
from simulation.ledger import (
    DelayLedger,
    InvariantBroken,
    LogLedger,
    Place,
    check_ordered_once,
)
from simulation.story import StoryOutcome, play_story, steps_by_actor
from simulation.story_rules import LONE_TOPIC, rules_of
from simulation.story_schedule import Step, StorySchedule
from simulation.story_topics import DELAY_TOPIC, DUE_TOPIC, LOG_TOPIC, PARTITIONS, QUEUE_TOPIC, SUBSCRIPTION
from simulation.troubles import (
    BRIEF_TOPIC,
    BULK,
    BULK_TOPIC,
    CHURN,
    CLOCKS,
    FIVE_BROKERS,
    GUARDED_TOPIC,
    MEMBERS,
    ORDERED_KEYS,
    ORDERED_TOPIC,
    PUSH,
    PUSH_TOPIC,
    REST,
    REST_IN,
    RETENTION,
    SHORT_TOPIC,
    USERS,
    WIDE_TOPIC,
)
from simulation.virtual_loop import VirtualLoop

Reply = TypeVar("Reply")

_LONGEST_DELAY_S = 21.0
_SETTINGS: dict[str, object] = {
    "groups.offsets_partitions": 1,
    "transactions.state_partitions": 1,
    "topics.segment_bytes": 16_384,
    "topics.index_interval_bytes": 512,
}
_SETTLES_WITHIN_S = 30.0
_LONGEST_STORY_S = 3_600.0
_RETRY_S = 0.5
_RETRIES_S = (0.05, 0.2, 0.2, 1.0, 3.0)
"""Some producers repeat a batch only when the leaders have changed twice."""
_LOOKS_EACH_S = 0.1
_UNCLEAN_EACH_S = 2.0


def play(schedule: StorySchedule) -> StoryOutcome:
    """Play a schedule on a new event loop."""
    return play_story(lambda loop: _ClusterStory(loop, schedule), _LONGEST_STORY_S)


class _Client(Protocol):
    """An actor that reaches the brokers through their doors."""

    async def execute(self, step: Step, door: ClientDoor, /) -> None: ...


class _Part(Protocol):
    """A part with a check once all faults have ended. All brokers run."""

    async def check_the_end(self, door: ClientDoor) -> None: ...


class _Fault(Protocol):
    """An actor that breaks the cluster which it was made with."""

    async def execute(self, step: Step, /) -> None: ...


class _ClusterStory:
    def __init__(self, loop: VirtualLoop, schedule: StorySchedule) -> None:
        self.counts = FaultCounts()
        self.digest = sha256()
        self._log = LogLedger(has_failovers=True)
        self._queue = ClusterQueueLedger(
            lambda: self._is_excused(QUEUE_TOPIC), lambda at_ms: self._cluster.latest_at(at_ms)
        )
        self._schedule = schedule
        self.bugs: list[BaseException] = []
        self._rules = rules = rules_of(schedule)
        self._cluster = cluster = SimulatedCluster(
            loop, schedule.seed, rules, _SETTINGS | rules.settings(), self._log, self.counts.note
        )
        self._door = cluster.clients.client("story")
        self._delays = DelayLedger()
        self._pushed = PushLedger(lambda: self._is_excused(PUSH_TOPIC))
        self._worker = ClusterWorker(self._queue, cluster)
        self._watcher = EndWatcher(cluster, self._log)
        self._background: list[asyncio.Task[None]] = []
        factors = {request.name: request.replication_factor for request in rules.requests()}
        factors.pop(DELAY_TOPIC, None)  # It is where its target is.
        if rules.moves:
            factors[TRANSACTIONS_TOPIC] = rules.replicas(rules.moves)
        if CHURN in rules.troubles:
            factors |= {name: rules.replicas() for name in CHURNED if name != DELAYED}
        self._operator = ClusterOperator(cluster, factors)
        self._clients: dict[str, _Client] = {
            "producer-all": Producer("all", LOG_TOPIC, self._log, pauses_s=_RETRIES_S),
            "producer-one": Producer("one", LOG_TOPIC, self._log, acks=ACKS_LEADER, pauses_s=_RETRIES_S),
            "producer-plain": Producer("plain", LOG_TOPIC, self._log, idempotent=False),
            "pipeliner": Pipeliner(self._log, self.counts),
            "reader": Reader(self._log, has_failovers=True),
            "watcher": self._watcher,
            "committer": Committer(ClusterOffsets(lambda: self._is_excused(OFFSETS_TOPIC))),
            "operator": self._operator,
            "bulk-publisher": BulkPublisher(self._log, self.counts),
            "table": (table := TableWriter(self._log, self.counts)),
            "deleter": (deleter := RecordDeleter(cluster, self._log, self.counts)),
            "policies": PolicyOperator(cluster, replicated := {LOG_TOPIC, *rules.owners} - {LONE_TOPIC}, self.counts),
        }
        self._table, self._deleter = table, deleter
        self._retention = RetentionWatch(cluster, self._log, self.counts)
        self._stamps = StampWatch(cluster)
        for name in (BRIEF_TOPIC, SHORT_TOPIC, WIDE_TOPIC):
            self._clients[f"producer-{name}"] = Producer(name, name, self._log, pauses_s=_RETRIES_S)
        self._network = NetworkFaults(cluster, self.counts)
        self._faults: dict[str, _Fault] = {
            "network": self._network,
            "machines": MachineFaults(cluster, self.counts),
            "prober": (progress := ProgressCheck(cluster, self._log, self.counts, rules.lag_ms / 1000)),
            "ambushes": (ambushes := Ambushes(cluster, self._strike, self.counts)),
        }
        if not rules.is_alone:
            self._faults["hardening"] = LateHardening(cluster, replicated, self.counts)
        self._progress = progress
        self._transactions = ClusterTransactions(cluster, ambushes, self.counts)
        self._groups = ClusterGroups(cluster, self.counts)
        self._parts: list[_Part] = []
        self._add_parts()
        for number in rules.node_ids:
            self._faults[f"broker-{number}"] = BrokerFaults(cluster, NodeId(number), self.counts)
            self._faults[f"store-{number}"] = StoreFaults(cluster, NodeId(number), self.counts)
            self._faults[f"data-{number}"] = DataFaults(cluster, NodeId(number), self.counts)
            self._faults[f"copy-{number}"] = StaleCopies(cluster, NodeId(number), self.counts)
            self._faults[f"bits-{number}"] = BitFlips(cluster, NodeId(number), self.counts)
            self._faults[f"clock-{number}"] = ClockFaults(cluster, NodeId(number), self.counts)

    def _add_parts(self) -> None:
        """Add the clients with checks of their own, and those that only some stories have."""
        cluster, rules = self._cluster, self._rules
        pipelined = PipelinedProducer("pipelined", self._log, self.counts)
        self._add(pipelined, {"producer-pipelined": pipelined})
        if rules.moves:
            self._add(self._transactions, self._transactions.clients)
        if CHURN in rules.troubles:
            churned = ChurnLedger(cluster)
            user = TopicUser(cluster, churned)
            admin = TopicAdmin(churned, rules.replicas(), self.counts)
            self._add(user, {"topic-admin": admin, "topic-user": user})
        if MEMBERS in rules.troubles:
            self._add(self._groups, self._groups.clients)
        if REST in rules.troubles:
            rest = RestClients(cluster, self.counts)
            self._add(rest, rest.clients)
        if ORDERED_KEYS in rules.troubles:
            keys = OrderedKeysClients(cluster, self.counts)
            self._add(keys, keys.clients)
        if USERS in rules.troubles:
            audit = AuditPromise(cluster)
            self._add(audit, user_clients(cluster, audit, self.counts))
        if PUSH in rules.troubles:
            target = SimulatedTarget(self._schedule.seed, self._pushed, self.counts)
            cluster.open_push_client = target.client
            pushes = Pushes(self._pushed, target)
            self._add(pushes, pushes.clients)
        for name in rules.topics:
            self._clients |= self._clients_of(name)

    def _add(self, part: _Part, clients: "Mapping[str, _Client]") -> None:
        self._parts.append(part)
        self._clients |= clients

    def _clients_of(self, topic: str) -> "dict[str, _Client]":
        """Return the clients of one of the topics that only some stories have."""
        if topic == QUEUE_TOPIC:
            other = ClusterWorker(self._queue, self._cluster)
            inspector = QueueInspector(self._queue, self._cluster, self.counts)
            workers = {"worker-1": self._worker, "worker-2": other}
            return {"publisher": QueuePublisher(self._queue), "inspector": inspector, **workers}
        if topic == DELAY_TOPIC:
            return {"delayer": DelayPublisher(self._delays)}
        return {f"producer-{topic}": Producer(topic, topic, self._log, pauses_s=_RETRIES_S)}

    @property
    def happened(self) -> Mapping[str, int]:
        return self.counts.happened

    @property
    def text_digest(self) -> str:
        return self.digest.hexdigest()

    async def run(self) -> None:
        await self._cluster.start()
        await self._repeat_until_success(self._prepare)
        background = [self._check(), self._watcher.poll_after_elections()]
        background += [] if self._rules.is_alone else [self._elect_uncleanly()]
        self._background = [asyncio.ensure_future(work) for work in background]
        parts = [
            asyncio.ensure_future(self._perform(name, steps)) for name, steps in steps_by_actor(self._schedule).items()
        ]
        try:
            await asyncio.gather(*parts)
            self._raise_bugs()
            await self._check_the_end()
            self._raise_bugs()
        finally:
            for part in (*self._background, *parts):
                part.cancel()

    async def _perform(self, name: str, steps: Sequence[Step]) -> None:
        loop, door = asyncio.get_running_loop(), self._cluster.clients.client(name)
        for step in steps:
            await asyncio.sleep(max(0.0, step.at_ms / 1000 - loop.time()))
            if name in self._faults:
                await self._progress.calm.wait()
                await self._faults[name].execute(step)
            elif name in self._clients:
                self.counts.note(step.action)
                await self._clients[name].execute(step, door)
            self._raise_bugs()

    async def _strike(self, node_id: NodeId, action: str, number: int) -> None:
        await self._progress.calm.wait()
        if self._rules.is_alone and action not in ("crash", "cut_power", "pause", "lose_store_replies"):
            return None
        if action == "isolate":
            return await self._network.isolate(node_id, number)
        kind = "store" if action in STORE_FAULTS else "broker"
        await self._faults[f"{kind}-{node_id}"].execute(Step(0, kind, action, number))

    async def _check(self) -> None:
        while True:
            self._cluster.look()
            self._deleter.check()
            if RETENTION in self._rules.troubles:
                self._retention.look()
            if CLOCKS in self._rules.troubles:
                self._stamps.look()
            await asyncio.sleep(_LOOKS_EACH_S)

    async def _elect_uncleanly(self) -> None:
        """Do what an operator does once all in-sync replicas of a partition have lost their records."""
        while True:
            await self._operator.elect_uncleanly(self._door)
            await asyncio.sleep(_UNCLEAN_EACH_S)

    async def _check_the_end(self) -> None:
        self._cluster.heal()
        await self._cluster.start()
        await self._check_settled()
        if self._rules.is_alone:
            await self._start_again()
        for place in self._places():
            values = await self._read_all(place)
            is_ordered = place[0] != BULK_TOPIC  # A request whose client has gone may be executed late.
            if is_ordered and not self._log.of(place).is_excused:
                check_ordered_once(place, values)
        await self._clients["committer"].execute(Step(0, "committer", "fetch_offset", 0), self._door)
        if DELAY_TOPIC in self._rules.topics or CHURN in self._rules.troubles:
            await asyncio.sleep(_LONGEST_DELAY_S)
        if DELAY_TOPIC in self._rules.topics:
            await self._check_delays()
        await self._repeat_until_success(self._subscribe)
        if QUEUE_TOPIC in self._rules.topics:
            await self._drain_queue()
        for part in self._parts:
            await part.check_the_end(self._door)
        await self._check_settled()
        self._cluster.look()
        check_images(self._cluster.nodes)
        for place in self._places():
            check_logs(self._cluster.nodes, *place)
        self._table.check_end(self._cluster.nodes)

    def _is_excused(self, topic: str) -> bool:
        """Return whether records of a topic may be lost."""
        return any(self._cluster.replicas.is_excused(TopicPartition(topic, number)) for number in range(PARTITIONS))

    def _places(self) -> list[Place]:
        """Return the partitions of all topics without companions."""
        topics = {LOG_TOPIC, *self._rules.topics} - {QUEUE_TOPIC, DELAY_TOPIC}
        if RETENTION in self._rules.troubles:
            topics |= {BRIEF_TOPIC, SHORT_TOPIC}
        if FIVE_BROKERS in self._rules.troubles:
            topics.add(WIDE_TOPIC)
        if BULK in self._rules.troubles:
            topics.add(BULK_TOPIC)
        return [(topic, number) for topic in sorted(topics) for number in range(PARTITIONS)]

    async def _check_delays(self) -> None:
        is_excused = self._is_excused(DUE_TOPIC)
        if is_excused:
            await self._delay_others()
        values = [value for _, value in await self._read_all((DUE_TOPIC, 0))]
        if not is_excused:
            self._delays.check(values, self._cluster.latest_at(self._cluster.clock.steady_ms()))
        self._delays.check_all(values)

    async def _delay_others(self) -> None:
        """Publish to a delayed topic that may have lost records: others in their place are forwarded."""
        self._delays.acknowledged.clear()
        while not self._delays.acknowledged:
            await self._clients["delayer"].execute(Step(0, "delayer", "produce_delayed", 1), self._door)
            await asyncio.sleep(_LONGEST_DELAY_S)

    async def _start_again(self) -> None:
        """Kill the only broker, and look whether everything comes back."""
        for broker in self._cluster.brokers.values():
            broker.crash()
            await broker.start()
        await self._check_settled()

    async def _drain_queue(self) -> None:
        while await self._repeat_until_success(lambda door: unsettled_count(door.any(), SUBSCRIPTION)):
            await self._worker.lease(self._door, 7)
            await self._worker.settle_all(self._door)
            await asyncio.sleep(_RETRY_S)
        self._queue.check_drained()
        for number in range(PARTITIONS):
            values = committed_values(self._cluster.nodes, QUEUE_TOPIC, number)
            self._queue.check_seen(value.decode() for value in values)

    async def _check_settled(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _SETTLES_WITHIN_S
        while differences := unsettled(self._cluster.nodes):
            self._raise_bugs()
            if loop.time() > deadline_s:
                raise InvariantBroken("ClusterSettles", f"after {_SETTLES_WITHIN_S} s: {', '.join(differences)}")
            await asyncio.sleep(_RETRY_S)

    async def _read_all(self, place: Place) -> list[tuple[int, bytes]]:
        """Return every record of a partition: offset and value."""
        values: list[tuple[int, bytes]] = []
        position = 0
        while True:
            try:
                fetched = await fetch(await self._door.leader(place), place, position)
            except (Disconnected, RequestError):
                await asyncio.sleep(_RETRY_S)
                continue
            if fetched.error is not None:
                if fetched.error.kind is ErrorKind.NOT_LEADER:
                    await asyncio.sleep(_RETRY_S)
                    continue
                if fetched.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE and position < fetched.log_start_offset:
                    position = fetched.log_start_offset
                    continue
                raise InvariantBroken("NoAcknowledgedLoss", f"{place} cannot be read: {fetched.error}")
            found = [(record.offset, record.value or b"") for record in fetched.records(position)]
            self._log.read(place, position, found, fetched.high_watermark)
            if not found:
                break
            values += found
            position = found[-1][0] + 1
        self._log.check_end(place, position)
        self.digest.update(repr(values).encode())
        return values

    async def _repeat_until_success(self, request: Callable[[ClientDoor], Awaitable[Reply]]) -> Reply:
        while True:
            try:
                return await request(self._door)
            except (Disconnected, RequestError):
                self._raise_bugs()
                await asyncio.sleep(_RETRY_S)

    async def _prepare(self, door: ClientDoor) -> None:
        """Create what the story begins with. A repeated request finds what an earlier one has created."""
        for wanted in self._rules.requests():
            if wanted.name not in self._cluster.tree.image.topics:
                await create_topic(
                    door.any(), wanted.name, wanted.partitions, wanted.replication_factor, wanted.config or {}
                )
        if self._rules.moves:
            await self._transactions.prepare(door, self._rules.moves)
        if USERS in self._rules.troubles:
            await permit_group(door)
        await self._subscribe(door)

    async def _subscribe(self, door: ClientDoor) -> None:
        subscriptions = self._cluster.tree.image.subscriptions
        wanted: tuple[tuple[str, str, Mapping[str, object]], ...] = (
            (QUEUE_TOPIC, SUBSCRIPTION, {}),
            (REST_IN, REST_SUBSCRIPTION, {}),
            (GUARDED_TOPIC, GUARDED_SUBSCRIPTION, {}),
            (ORDERED_TOPIC, ORDERED_SUBSCRIPTION, ORDERED_POLICY),
            (PUSH_TOPIC, PUSH_SUBSCRIPTION, PUSH_POLICY),
        )
        for topic, name, policy in wanted:
            if topic in self._cluster.tree.image.topics and name not in subscriptions:
                await create_subscription(door.any(), topic, name, **policy)

    def _raise_bugs(self) -> None:
        bugs = self.bugs + self._cluster.bugs + self._pushed.broken
        if bugs:
            raise bugs[0]
        self._groups.check()
        for part in self._background:
            if part.done():
                part.result()
