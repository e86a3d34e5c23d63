"""The controller of a cluster: elections, brokers that come, go and flap, zombies, lost replies, balance."""

from collections.abc import Callable
from uuid import UUID

import pytest

from conveyor.broker.metadata import controller as module
from conveyor.broker.metadata.broker_session import BROKERS_PATH
from conveyor.broker.metadata.controller import BALANCE_INTERVAL_MS
from conveyor.cluster.changes import topic_put
from conveyor.cluster.controller.registrations import observed_brokers
from conveyor.cluster.image import NO_LEADER, PartitionImage, TopicImage
from conveyor.cluster.metadata_log import CONTROLLER_EPOCH_PATH, CONTROLLERS_PATH, controller_path
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import FIRST_GATEWAY_ID, LeaderEpoch, NodeId, TopicId
from conveyor.kernel.peers import PeerIdentity
from conveyor.kernel.ports import DeleteNode, PutNode, StoreOperation
from tests.unit.broker.metadata.members import Cluster, Member, quiet, until
from tests.unit.broker.metadata.proposals import group, put

TOPIC_ID = TopicId(UUID(int=1))


def partition_of(*replicas: int, leader: int | None = None) -> PartitionImage:
    nodes = tuple(map(NodeId, replicas))
    return PartitionImage(
        leader=nodes[0] if leader is None else NodeId(leader), leader_epoch=LeaderEpoch(1), replicas=nodes, isr=nodes
    )


async def create(member: Member, *partitions: PartitionImage) -> None:
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=partitions)
    await member.metadata.propose(lambda _: [topic_put(topic)])


def first_partition(member: Member) -> PartitionImage:
    return member.image.topics["t"].partitions[0]


def controllers(cluster: Cluster) -> list[str]:
    return [path for path in cluster.tree.nodes if path.startswith(f"{CONTROLLERS_PATH}/")]


def is_fenced(observer: Member, member: Member) -> Callable[[], bool]:
    return lambda: observer.image.brokers[member.node_id].is_fenced


async def test_first_broker_is_elected_and_the_others_know_it(cluster: Cluster) -> None:
    members = [await cluster.add(node_id) for node_id in (2, 1, 3)]
    assert [member.metadata.controller_id for member in members] == [2, 2, 2]
    assert controllers(cluster) == [controller_path(1)]
    assert {node for node, broker in members[0].image.brokers.items() if not broker.is_fenced} == {1, 2, 3}


async def test_broker_whose_session_ends_is_fenced_and_another_replica_leads(cluster: Cluster) -> None:
    first, second, third = [await cluster.add(node_id) for node_id in (1, 2, 3)]
    await create(first, partition_of(3, 2))
    await cluster.kill(third)
    await quiet()
    assert not is_fenced(first, third)(), "its session lives on"
    third.store.expire()
    await until(is_fenced(first, third))
    after = first_partition(first)
    assert (after.leader, after.leader_epoch, after.isr) == (2, 2, (2,))
    await until(lambda: second.image == first.image)


async def test_broker_that_is_back_within_one_observation_gets_new_leader_epochs(cluster: Cluster) -> None:
    """The controller sees neither that the broker has gone nor that it has come back."""
    first, second = await cluster.add(1), await cluster.add(2)
    await create(first, partition_of(2, 1))
    first.store.hold_commits()
    await put(second.metadata, "a")
    second.store.cut()
    second.store.expire()
    second.store.reconnect()
    await until(lambda: len([path for path in cluster.tree.nodes if path.startswith(f"{BROKERS_PATH}/2.")]) == 1)
    first.store.release_commits()
    await until(lambda: second.is_registered)
    after = first_partition(second)
    assert (after.leader, after.leader_epoch, after.isr) == (1, 2, (1,))
    assert second.image.brokers[NodeId(2)].broker_epoch == second.session.broker_epoch == 3


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'{"node_id": "nine"}'])
async def test_registration_that_cannot_be_read_is_reported_once_and_ignored(
    cluster: Cluster, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first = await cluster.add(1)
    await first.store.commit(PutNode(f"{BROKERS_PATH}/9.damaged", content))
    second, third = await cluster.add(2), await cluster.add(3)
    await cluster.kill(second)
    second.store.expire()
    await until(is_fenced(third, second))
    assert sorted(third.image.brokers) == [1, 2, 3]
    assert caplog.text.count("/brokers/9.damaged is damaged") == 1


async def test_gateway_is_registered_and_not_in_the_image(cluster: Cluster) -> None:
    first, gateway = await cluster.add(1), cluster.make(FIRST_GATEWAY_ID)
    await gateway.metadata.load(gateway.broker)
    await gateway.session.start(gateway.registration)
    await cluster.add(2)
    assert sorted(first.image.brokers) == sorted(gateway.image.brokers) == [1, 2]
    assert any(path.startswith(f"{BROKERS_PATH}/{FIRST_GATEWAY_ID}.") for path in cluster.tree.nodes)
    before = first.image
    gateway.store.cut()
    gateway.store.expire()
    await quiet()
    assert first.image is before, "its death moves nothing"
    gateway.store.reconnect()
    await until(gateway.session.holds_lease)


async def test_another_broker_takes_over_from_a_dead_controller(cluster: Cluster) -> None:
    first, second, third = [await cluster.add(node_id) for node_id in (1, 2, 3)]
    await create(second, partition_of(1, 3))
    await cluster.kill(first)
    first.store.expire()
    await until(is_fenced(second, first))
    await until(is_fenced(third, first))
    assert first_partition(second).leader == 3
    assert len(controllers(cluster)) == 1
    assert second.metadata.controller_id == third.metadata.controller_id != 1


async def test_controller_that_was_replaced_while_it_decided_writes_nothing(cluster: Cluster) -> None:
    """It stands still between its decision and its commit, and another one is elected."""
    first, second, third = [await cluster.add(node_id) for node_id in (1, 2, 3)]
    await create(second, partition_of(3, 2))
    first.store.hold_commits()
    third.store.cut()
    third.store.expire()  # The first controller decides to fence it.
    await quiet()
    third.store.reconnect()
    await second.store.commit(DeleteNode(controller_path(1)))  # As if the session of the first one had ended.
    await until(lambda: second.metadata.term is not None or third.metadata.term is not None)
    await until(lambda: third.is_registered)
    epochs = third.image.brokers[NodeId(3)].broker_epoch, first_partition(third).leader_epoch
    first.store.release_commits()
    await until(lambda: first.metadata.term is None)
    await put(first.metadata, "a")
    await until(lambda: third.image == first.image)
    assert (third.image.brokers[NodeId(3)].broker_epoch, first_partition(third).leader_epoch) == epochs
    assert not is_fenced(first, third)()
    assert first.metadata.controller_id in (2, 3)


async def test_proposal_of_a_former_controller_is_refused(cluster: Cluster) -> None:
    first, second = await cluster.add(1), await cluster.add(2)
    term = first.metadata.term
    assert term is not None
    await first.metadata.propose(lambda _: [group("a")], term)
    first.store.cut()
    first.store.expire()
    await until(lambda: second.metadata.term is not None)
    first.store.reconnect()
    with pytest.raises(RequestError) as refused:
        await first.metadata.propose(lambda _: [group("b")], term)
    assert refused.value.kind is ErrorKind.NOT_CONTROLLER


async def test_election_whose_reply_is_lost_is_won(cluster: Cluster) -> None:
    def is_election(operation: StoreOperation) -> bool:
        return isinstance(operation, PutNode) and operation.path == CONTROLLER_EPOCH_PATH

    member = cluster.make(1)
    member.store.loses_reply = is_election
    await member.start()
    await quiet()
    assert (member.metadata.term, len(controllers(cluster))) == (None, 1)
    await member.advance_until(lambda: member.is_registered)
    assert controllers(cluster) == [controller_path(1)]


async def test_controller_whose_node_is_gone_stands_again(cluster: Cluster) -> None:
    first = await cluster.add(1)
    await first.store.commit(DeleteNode(controller_path(1)))
    await until(lambda: first.metadata.term is not None and first.metadata.term.epoch == 2)
    second = await cluster.add(2)
    assert second.metadata.controller_id == 1


async def test_restarted_controller_takes_over_from_its_dead_predecessor_at_once(cluster: Cluster) -> None:
    first = await cluster.add(1)
    await cluster.kill(first)
    again = await cluster.add(1)
    assert controllers(cluster) == [controller_path(2)]
    assert again.image.brokers[NodeId(1)].broker_epoch == 2


async def test_broker_that_was_declared_dead_is_fenced_before_its_session_ends(cluster: Cluster) -> None:
    """Also if it is the controller."""
    first, second, third = [await cluster.add(node_id) for node_id in (1, 2, 3)]
    await cluster.kill(first)
    await third.session.declare_dead(PeerIdentity(first.node_id, first.session.incarnation))
    await until(is_fenced(second, first))
    assert third.metadata.term is not None


async def test_broker_that_was_declared_dead_by_mistake_registers_again(cluster: Cluster) -> None:
    first, second = await cluster.add(1), await cluster.add(2)
    await second.session.declare_dead(PeerIdentity(first.node_id, first.session.incarnation))
    await until(lambda: second.metadata.term is not None)
    await first.advance_until(lambda: first.session.broker_epoch == 3)
    await until(lambda: first.is_registered)
    assert first.metadata.term is None


async def test_registrations_are_read_anew_after_an_election(cluster: Cluster) -> None:
    """The controller was cut off while a broker came and another one went."""
    first, second, third = [await cluster.add(node_id) for node_id in (1, 2, 3)]
    first.store.cut()
    await cluster.kill(second)
    second.store.expire()
    fourth = cluster.make(4)
    await fourth.start()
    await quiet()
    assert not fourth.is_registered
    first.store.reconnect()
    await until(lambda: fourth.is_registered)
    assert is_fenced(fourth, second)()
    assert not is_fenced(fourth, third)()
    assert first.metadata.term is not None


async def test_decision_that_stops_midway_is_continued(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await cluster.add(1), await cluster.add(2)
    await create(first, *(partition_of(2, 1) for _ in range(7)))
    monkeypatch.setattr(
        module, "observed_brokers", lambda image, found, settings: observed_brokers(image, found, settings, 2)
    )
    before = first.image.seq
    await cluster.kill(second)
    second.store.expire()
    await until(lambda: all(partition.leader == 1 for partition in first.image.topics["t"].partitions))
    assert first.image.seq - before == 4


async def test_leaders_are_balanced_from_time_to_time(cluster: Cluster) -> None:
    first, second = await cluster.add(1), await cluster.add(2)
    await create(first, *(partition_of(2, 1, leader=1) for _ in range(4)))
    first.clock.advance(seconds=BALANCE_INTERVAL_MS / 1000 - 1)
    await quiet()
    assert first_partition(first).leader == 1
    first.clock.advance(seconds=1)
    await until(lambda: all(partition.leader == 2 for partition in second.image.topics["t"].partitions))


async def test_all_brokers_may_go_and_come_back(cluster: Cluster) -> None:
    members = [await cluster.add(node_id) for node_id in (1, 2, 3)]
    await create(members[0], partition_of(1, 2, 3))
    for member in members:
        member.store.cut()
    for member in members:
        member.store.expire()
    await quiet()
    for member in members:
        member.store.reconnect()
    for member in members:
        await member.advance_until(lambda member=member: member.is_registered)  # type: ignore[misc]
    await until(lambda: len({member.image.seq for member in members}) == 1)
    assert first_partition(members[0]).leader != NO_LEADER
    assert first_partition(members[0]).leader_epoch > 1
