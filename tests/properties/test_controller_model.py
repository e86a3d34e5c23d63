"""Whatever happens to brokers, and however stale their requests are, no clean election loses a committed record.

The controller decides while brokers crash, lose memory or disks, lag behind, and lead on without knowing that they are
fenced. PROPERTY_EXAMPLES in the environment sets the number of stories.
"""

import os
from collections.abc import Callable
from copy import deepcopy
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conveyor.cluster.changes import Change, topic_put
from conveyor.cluster.controller.alter_partition import AlterPartition, altered_partition
from conveyor.cluster.controller.bundles import bundle_policy
from conveyor.cluster.controller.controlled_shutdown import ShutdownRequest, stopping_broker
from conveyor.cluster.controller.elections import ElectionRequest, balanced_leaders, elected_leader
from conveyor.cluster.controller.partition_transition import Election, effective_min_insync
from conveyor.cluster.controller.reassignments import Reassignment, reassigned
from conveyor.cluster.controller.registrations import Doubt, observed_brokers
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage, companion
from conveyor.cluster.placement import Placement, new_partitions
from conveyor.cluster.topic_change import ConfigChange, Operation, changed_config
from conveyor.cluster.topic_decisions import changed_topic
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId, TopicId
from tests.properties.replicated_cluster import SETTINGS, TOPIC, ReplicatedCluster, SimulatedBroker, shared
from tests.unit.cluster.controller.clusters import live
from tests.unit.cluster.images import EMPTY, changed

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "400"))
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
COMPANION = companion("__queue_state", TOPIC)
NODES = st.sampled_from([NodeId(node) for node in range(1, 5)])
NUMBERS = st.just(0)
KINDS = st.sampled_from([*["process"] * 4, *["machine"] * 3, "disk", "log", "copy", "clean"])
MOSTLY = st.sampled_from([True, True, True, False])
TARGETS = st.lists(NODES, min_size=1, max_size=3, unique=True).map(tuple)


class ControllerModel(RuleBasedStateMachine):
    """Four brokers, a topic of one partition with a companion."""

    cluster: ReplicatedCluster

    @initialize(
        factor=st.sampled_from([1, 2, 2, 3, 3]),
        minimum=st.sampled_from([1, 2, 2, 3]),
        policy=st.sampled_from(["ack", "os"]),
        unclean=st.sampled_from([*["false"] * 5, "true"]),
    )
    def begin(self, factor: int, minimum: int, policy: str, unclean: str) -> None:
        image = changed(EMPTY, *observed_brokers(EMPTY, live(1, 2, 3, 4), SETTINGS))
        partitions = new_partitions(image, [Placement(image).assign(factor)])
        config = {
            "min.insync.replicas": str(minimum),
            "flush.policy": policy,
            "unclean.leader.election.enable": unclean,
        }
        topics = [
            TopicImage(name=name, topic_id=TopicId(UUID(int=number)), partitions=partitions, config=config)
            for number, name in enumerate((TOPIC, COMPANION))
        ]
        self.cluster = ReplicatedCluster(changed(image, *map(topic_put, topics)))
        self.requests: list[AlterPartition] = []
        self.leaders: dict[tuple[int, int], tuple[NodeId, int]] = {}
        """The registration that leads, by partition and leader epoch."""
        self.newest_target: tuple[NodeId, ...] = ()

    # What brokers do.

    @rule(number=NUMBERS, followers=st.sets(NODES), watchers=st.sets(NODES), count=st.sampled_from([1, 2, 99]))
    def work(self, number: int, followers: set[NodeId], watchers: set[NodeId], count: int) -> None:
        """Some brokers see the newest image. All leaders append a record, some followers take records of theirs."""
        for node in sorted(watchers):
            self.catch_up(node)
        for node in self.cluster.brokers:
            self.cluster.produce(node, number)
        for node in sorted(followers):
            self.cluster.replicate(node, number, count)
        for node in self.cluster.brokers:
            self.cluster.commit(node, number)

    @rule(nodes=st.sets(NODES))
    def flush(self, nodes: set[NodeId]) -> None:
        for node in nodes:
            self.cluster.brokers[node].flush()

    @rule(node=NODES)
    def copy(self, node: NodeId) -> None:
        """Copy the data directory of a broker, as a backup does."""
        self.cluster.brokers[node].copy = deepcopy(self.cluster.brokers[node].disk)

    @rule(number=NUMBERS)
    def work_undisturbed(self, number: int) -> None:
        """All live brokers see the image and take all records, and leaders add them to the ISR."""
        everyone = set(self.cluster.brokers)
        for _ in range(3):
            self.work(number, everyone, everyone, 99)
            self.alter_partition(number, joins=True, which=0, is_on_time=True)
        self.work(number, everyone, everyone, 99)

    def catch_up(self, node: NodeId) -> None:
        if self.cluster.brokers[node].is_alive:
            self.cluster.brokers[node].view = self.cluster.image

    @rule(number=NUMBERS, joins=st.booleans(), which=st.integers(0, 3), is_on_time=MOSTLY)
    def alter_partition(self, number: int, joins: bool, which: int, is_on_time: bool) -> None:
        """Every broker that takes itself for the leader sends a request; a late one arrives at any time."""
        for node in self.cluster.brokers:
            request = self.cluster.isr_request(node, number, joins=joins, which=which)
            if request is not None and not is_on_time:
                self.requests.append(request)
            elif request is not None:
                self.deliver(request)

    @precondition(lambda self: bool(getattr(self, "requests", None)))
    @rule(data=st.data())
    def late_request_arrives(self, data: st.DataObject) -> None:
        """Perhaps not for the last time."""
        at = data.draw(st.integers(0, len(self.requests) - 1))
        self.deliver(self.requests[at])
        if data.draw(st.booleans()):
            del self.requests[at]

    def deliver(self, request: AlterPartition) -> None:
        self.decide(lambda image: altered_partition(image, request, SETTINGS))

    # What happens to brokers.

    @rule(
        number=NUMBERS,
        followers=st.none() | st.sets(NODES),
        which=st.sampled_from([0, 0, 1, 2]),
        kind=KINDS,
        returns=st.booleans(),
        is_seen=MOSTLY,
    )
    def crash(
        self, number: int, followers: set[NodeId] | None, which: int, kind: str, *, returns: bool, is_seen: bool
    ) -> None:
        """The leader or another replica crashes, perhaps after some work. returns: before the controller looks."""
        if followers is not None:
            self.work(number, followers, set(self.cluster.brokers), 99)
        broker = self.replica(number, which)
        if broker.is_alive and kind == "clean":
            broker.stop_cleanly()
        elif broker.is_alive and kind == "disk":
            broker.lose_directory()
        elif broker.is_alive and kind == "log":
            broker.lose_log(number)
        elif broker.is_alive and kind == "copy":
            broker.restore_copy()
        elif broker.is_alive:
            broker.crash(loses_memory=kind != "process")
        if returns:
            self.cluster.register(broker)
        if is_seen:
            self.observe()

    @rule(nodes=st.sets(NODES))
    def start(self, nodes: set[NodeId]) -> None:
        for node in nodes:
            if not self.cluster.brokers[node].is_registered:
                self.cluster.register(self.cluster.brokers[node])
        self.observe()

    @rule(number=NUMBERS, which=st.integers(0, 2))
    def session_expires(self, number: int, which: int) -> None:
        """The broker goes on as if nothing had happened."""
        self.replica(number, which).is_registered = False
        self.observe()

    def replica(self, number: int, which: int) -> SimulatedBroker:
        """The leader first, then the other replicas."""
        state = self.cluster.partition(number)
        replicas = sorted(state.replicas, key=lambda node: node != state.leader)
        return self.cluster.brokers[replicas[which % len(replicas)]]

    # What the controller decides.

    @rule()
    def observe(self) -> None:
        present = [broker.registration() for broker in self.cluster.brokers.values() if broker.is_registered]
        is_done = False
        while not is_done:
            is_done = not self.decide(lambda image: observed_brokers(image, present, SETTINGS), is_idempotent=False)
        assert observed_brokers(self.cluster.image, present, SETTINGS) == []
        for broker in self.cluster.brokers.values():
            shown = self.cluster.image.brokers[broker.node_id]
            assert (shown.broker_epoch == broker.epoch) if broker.is_registered else shown.is_fenced
            if broker.is_registered:
                self.settle(broker)

    def settle(self, broker: SimulatedBroker) -> None:
        """The image shows the broker: what it has found doubtful is known."""
        for number, doubt in broker.disk.doubts.items():
            if doubt is Doubt.UNPROVEN and self.cluster.partition(number).replicas == (broker.node_id,):
                self.accept_loss(number, broker.node_id)
        broker.disk.doubts.clear()

    @rule(number=NUMBERS, replicas=st.none() | TARGETS)
    def reassign(self, number: int, replicas: tuple[NodeId, ...] | None) -> None:
        before = self.cluster.partition(number)
        request = Reassignment(topic=TOPIC, partition=number, target=replicas)
        self.newest_target = replicas or before.origin
        if not self.decide(lambda image: reassigned(image, request, SETTINGS), is_idempotent=replicas is not None):
            return
        after = self.cluster.partition(number)
        if replicas is None:
            assert (after.replicas, after.target) == (before.origin, ())
        else:
            assert replicas in (after.target, after.replicas)
            assert after.origin in ((), before.origin or before.replicas)

    @rule(number=NUMBERS, election=st.sampled_from([*["balance"] * 5, *[Election.PREFERRED] * 5, Election.UNCLEAN]))
    def elect(self, number: int, election: Election | str) -> None:
        if isinstance(election, Election):
            request = ElectionRequest(topic=TOPIC, partition=number, election=election)
            self.decide(lambda image: elected_leader(image, request, SETTINGS), is_idempotent=False)
        else:
            self.decide(lambda image: balanced_leaders(image, SETTINGS))

    @rule(node=NODES)
    def stop(self, node: NodeId) -> None:
        request = ShutdownRequest(node_id=node, broker_epoch=self.cluster.brokers[node].epoch)
        self.decide(lambda image: stopping_broker(image, request, SETTINGS))

    @rule(minimum=st.integers(1, 3))
    def change_minimum(self, minimum: int) -> None:
        self.change_config("min.insync.replicas", str(minimum))

    @rule(policy=st.sampled_from(["ack", "os"]))
    def change_flush_policy(self, policy: str) -> None:
        self.change_config("flush.policy", policy)

    def change_config(self, name: str, value: str) -> None:
        change = ConfigChange(name=name, operation=Operation.SET, value=value)

        def decide(image: ClusterImage) -> list[Change]:
            return changed_topic(image, TOPIC, lambda topic: changed_config(topic, [change], SETTINGS), SETTINGS)

        self.decide(decide)

    def decide(self, decide: Callable[[ClusterImage], list[Change]], *, is_idempotent: bool = True) -> bool:
        """Write what is decided; True if that is anything. Deciding again changes nothing more."""
        before = [self.cluster.partition(number) for number in range(self.cluster.count)]
        image = self.cluster.image
        try:
            changes = decide(image)
        except RequestError:
            return False
        self.cluster.write(changes)
        if is_idempotent:
            self.decides_nothing(decide)
        for number, state in enumerate(before):
            self.check_transition(number, state, self.cluster.partition(number))
        return bool(changes)

    def decides_nothing(self, decide: Callable[[ClusterImage], list[Change]]) -> None:
        try:
            again = decide(self.cluster.image)
        except RequestError:
            return
        assert again == []

    def accept_loss(self, number: int, node: NodeId) -> None:
        records = self.cluster.committed[number]
        del records[shared(records, self.cluster.brokers[node].logs[number]) :]

    # What holds at all times.

    def check_transition(self, number: int, before: PartitionImage, after: PartitionImage) -> None:
        if before == after:
            return
        assert after.partition_epoch == before.partition_epoch + 1
        assert after.leader_epoch >= before.leader_epoch
        assert after.leader == before.leader or after.leader_epoch > before.leader_epoch
        if after.unclean_epoch != before.unclean_epoch:
            assert after.unclean_epoch == after.leader_epoch
            self.accept_loss(number, after.leader)
        elif after.leader not in (before.leader, NO_LEADER):
            assert after.leader in (*before.isr, *before.elr, *after.isr)
        if before.target and not after.target:
            assert after.replicas in (before.target, before.origin, self.newest_target)

    @invariant()
    def states_are_sound(self) -> None:
        if not hasattr(self, "cluster"):
            return
        minimum = bundle_policy(self.cluster.topic(), SETTINGS).min_insync
        for number in range(self.cluster.count):
            state = self.cluster.partition(number)
            assert state.leader == NO_LEADER or state.leader in state.isr
            assert set(state.isr) <= set(state.replicas)
            assert set(state.elr) <= set(state.replicas) - set(state.isr)
            assert not state.elr or len(state.isr) < effective_min_insync(state, minimum)
            assert (state.last_known_leader == NO_LEADER) or state.leader == NO_LEADER
            assert len(set(state.replicas)) == len(state.replicas)
            assert set(state.replicas) == {*(state.target or state.replicas), *state.origin}
            assert self.cluster.image.topics[COMPANION].partitions[number] == state

    @invariant()
    def every_leader_epoch_has_one_leader(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for broker in self.cluster.brokers.values():
            for number in range(self.cluster.count):
                term = broker.term(number)
                if term is not None:
                    leads = broker.node_id, broker.epoch
                    assert self.leaders.setdefault((number, term.epoch), leads) == leads

    @invariant()
    def leader_has_every_committed_record(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for number in range(self.cluster.count):
            leader = self.cluster.brokers.get(self.cluster.partition(number).leader)
            if leader is not None and self.is_current(leader):
                committed = self.cluster.committed[number]
                assert leader.logs[number][: len(committed)] == committed

    def is_current(self, broker: SimulatedBroker) -> bool:
        """Whether the image shows the broker as it is."""
        shown = self.cluster.image.brokers[broker.node_id]
        return broker.is_alive and not shown.is_fenced and shown.broker_epoch == broker.epoch


TestControllerModel = ControllerModel.TestCase
TestControllerModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
