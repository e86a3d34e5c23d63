"""Groups that change from the classic to the consumer protocol and back, with and without members."""

from collections.abc import Iterator
from struct import pack

import pytest
from msgspec.structs import replace

from conveyor.groups.classic.embedded_protocol import decode_assignment, encode_assignment
from conveyor.groups.group_commands import DescribeGroup
from conveyor.groups.replies import Alive, Committed, DescribedGroup, Joined, JoinRefused, Left, Synced
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.state_machine import Token
from tests.unit.groups.consumers import ConsumerMember, coordinator_with, described, joined, place, settle, tell_topics
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, SESSION_MS, Coordinator, kind_of


def subscription(*owned: int) -> bytes:
    """Return the subscription (version 1) of a consumer that reads `topic` and owns these partitions."""
    name = pack(">h", 5) + b"topic"
    places = pack(">i", 1) + name + pack(f">i{len(owned)}i", len(owned), *owned) if owned else pack(">i", 0)
    return pack(">hi", 1, 1) + name + pack(">i", -1) + places


def protocols(*owned: int) -> tuple[tuple[str, bytes], ...]:
    return (("cooperative-sticky", subscription(*owned)),)


class ClassicClient:
    """A member that uses the classic protocol, in a group of either protocol; it stops reading revoked partitions at
    once.
    """

    def __init__(self, coordinator: Coordinator, member_id: str, generation_id: int, *owned: int) -> None:
        self.coordinator = coordinator
        self.member_id = member_id
        self.generation_id = generation_id
        self.owned = set(owned)

    def beat(self) -> object:
        return self.coordinator.heartbeat(self.member_id, self.generation_id)

    def start_join(self) -> Token:
        return self.coordinator.start_join(self.member_id, protocols=protocols(*sorted(self.owned)))

    def rejoin(self) -> None:
        """Join and sync again, as a heartbeat reply demands."""
        reply = self.coordinator.reply(self.start_join())
        assert isinstance(reply, Joined), reply
        self.generation_id = reply.generation_id
        synced = self.coordinator.reply(self.coordinator.start_sync(self.member_id, self.generation_id))
        assert isinstance(synced, Synced), synced
        assignment = decode_assignment(synced.assignment)
        assert assignment is not None
        self.owned = {number for _, number in assignment.partitions}


def classic_group(coordinator: Coordinator, size: int = 2, **fields: str) -> list[ClassicClient]:
    """Return the members of a stable classic group that shares the four partitions of `topic`."""
    first = coordinator.join(protocols=protocols(), **fields)
    tokens = [coordinator.start_join(protocols=protocols()) for _ in range(size - 1)]
    leader = coordinator.join(first.member_id, protocols=protocols()) if tokens else first
    ids = [leader.member_id] + [coordinator.reply(token).member_id for token in tokens]
    shares = [list(range(number, 4, size)) for number in range(size)]
    assignments = {
        member_id: encode_assignment(1, [("topic", n) for n in share])
        for member_id, share in zip(ids, shares, strict=True)
    }
    for member_id in ids[1:]:
        coordinator.start_sync(member_id, leader.generation_id)
    coordinator.start_sync(ids[0], leader.generation_id, assignments=assignments)
    return [
        ClassicClient(coordinator, member_id, leader.generation_id, *share)
        for member_id, share in zip(ids, shares, strict=True)
    ]


def reconcile(classic: list[ClassicClient], consumers: list[ConsumerMember]) -> None:
    for _ in range(6):
        for client in classic:
            if client.beat() != Alive():
                client.rejoin()
        for consumer in consumers:
            consumer.beat()


def all_owned(classic: list[ClassicClient], consumers: list[ConsumerMember]) -> list[int]:
    return sorted(
        [partition for one in classic for partition in one.owned] + [n for one in consumers for _, n in one.owned]
    )


@pytest.mark.parametrize("is_active", [True, False])
def test_refused_join_of_the_consumer_protocol_converts_nothing(is_active: bool) -> None:
    coordinator = coordinator_with()
    members = classic_group(coordinator)
    if not is_active:
        coordinator.leave(*[member.member_id for member in members])
        coordinator.advance(REBALANCE_MS)
    before, groups = len(coordinator.log), coordinator.listed()
    late = ConsumerMember(coordinator, "late")
    names = tuple(str(number) for number in range(500_001))
    refused = late.send(rebalance_timeout_ms=1, owned=frozenset(), topics=names)
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert (len(coordinator.log), coordinator.listed()) == (before, groups)
    coordinator.advance(SESSION_MS // 2)
    for member in members if is_active else ():
        assert isinstance(member.beat(), Alive)


def test_refused_join_of_the_classic_protocol_leaves_the_empty_consumer_group() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    member.leave()
    before = len(coordinator.log)
    assert isinstance(coordinator.reply(coordinator.start_join("unknown")), JoinRefused)
    assert (len(coordinator.log), described(coordinator).state) == (before, "Empty")


def test_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    coordinator = coordinator_with()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.commit(5, member, generation_id)
    coordinator.leave(member)
    joined(coordinator, "a")
    for _ in range(2):
        assert [group.group_type for group in coordinator.listed()] == ["consumer"]
        assert [offset.offset for offset in coordinator.committed()] == [5]
        coordinator.crash()


def test_empty_consumer_group_becomes_a_classic_group() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    member.leave()
    coordinator.stable_group(1)
    for _ in range(2):
        assert [group.group_type for group in coordinator.listed()] == ["classic"]
        coordinator.crash()


def test_living_classic_group_takes_in_a_consumer() -> None:
    coordinator = coordinator_with(partition_count=4)
    clients = classic_group(coordinator)
    consumer = ConsumerMember(coordinator, "new")
    assert consumer.join().assignment == frozenset()
    assert kind_of(clients[0].beat()) is ErrorKind.REBALANCE_IN_PROGRESS
    for _ in range(4):
        reconcile(clients, [consumer])
        assert all_owned(clients, [consumer]) == [0, 1, 2, 3]
    assert sorted([len(client.owned) for client in clients] + [len(consumer.owned)]) == [1, 1, 2]
    assert described(coordinator).state == "Stable"
    kinds = [member.subscription.classic is None for member in described(coordinator).members]
    assert kinds == [False, False, True]


def test_group_is_moved_over_one_by_one_and_back() -> None:
    coordinator = coordinator_with(partition_count=4)
    clients = classic_group(coordinator)
    consumers = [ConsumerMember(coordinator, "one")]
    consumers[0].join()
    for client in clients:
        left = coordinator.leave(client.member_id)
        assert left == Left(errors=(None,))
    consumers.append(ConsumerMember(coordinator, "two"))
    consumers[1].join()
    settle(*consumers)
    assert [len(consumer.owned) for consumer in consumers] == [2, 2]
    back = ClassicClient(coordinator, "", -1)
    refused = coordinator.reply(coordinator.start_join(protocols=protocols(), requires_known_id=True))
    assert isinstance(refused, JoinRefused)
    back.member_id = refused.member_id
    back.rejoin()
    reconcile([back], consumers)
    assert all_owned([back], consumers) == [0, 1, 2, 3]
    for consumer in consumers:
        consumer.leave()
    group = coordinator.ask(DescribeGroup(group_id=GROUP))
    assert isinstance(group, DescribedGroup)
    assert (group.state, [member.member_id for member in group.members]) == ("PreparingRebalance", [back.member_id])
    again = coordinator.reply(back.start_join())
    assert isinstance(again, Joined)
    assert again.leader == back.member_id


def test_crash_does_not_disturb_a_move() -> None:
    coordinator = coordinator_with(partition_count=4)
    clients = classic_group(coordinator)
    consumer = ConsumerMember(coordinator, "new")
    consumer.join()
    before = described(coordinator)
    coordinator.crash()
    tell_topics(coordinator, topic=4)
    assert described(coordinator) == before
    reconcile(clients, [consumer])
    consumer.leave()
    before_crash = coordinator.ask(DescribeGroup(group_id=GROUP))
    for _ in range(2):
        coordinator.crash()
        assert coordinator.ask(DescribeGroup(group_id=GROUP)) == before_crash


def mixed_group(coordinator: Coordinator) -> tuple[ClassicClient, ConsumerMember]:
    """Return the two members of a group, of which each reads two of the four partitions of `topic`."""
    [client] = classic_group(coordinator, 1)
    consumer = ConsumerMember(coordinator, "new")
    consumer.join()
    reconcile([client], [consumer])
    return client, consumer


def test_partitions_of_the_last_consumer_are_read_again_although_the_coordinator_crashes() -> None:
    coordinator = coordinator_with(partition_count=4)
    client, consumer = mixed_group(coordinator)
    consumer.leave()
    coordinator.crash()
    assert coordinator.commit(5, client.member_id, client.generation_id) == Committed(errors=(None,))
    assert kind_of(client.beat()) is ErrorKind.REBALANCE_IN_PROGRESS
    again = coordinator.reply(client.start_join())
    assert (again.leader, len(again.members)) == (client.member_id, 1)
    coordinator.assign(again.leader, again.generation_id, again.leader)
    coordinator.crash()
    assert coordinator.heartbeat(client.member_id, again.generation_id) == Alive()


def test_converted_group_that_nobody_joins_again_becomes_empty_after_a_crash() -> None:
    coordinator = coordinator_with(partition_count=4)
    mixed_group(coordinator)[1].leave()
    coordinator.crash()
    coordinator.advance(SESSION_MS)
    assert coordinator.ask(DescribeGroup(group_id=GROUP)).state == "Empty"


def test_converted_group_takes_in_a_consumer_again_after_a_crash() -> None:
    coordinator = coordinator_with(partition_count=4)
    client, consumer = mixed_group(coordinator)
    consumer.leave()
    coordinator.crash()
    tell_topics(coordinator, topic=4)
    consumer.join()
    reconcile([client], [consumer])
    assert all_owned([client], [consumer]) == [0, 1, 2, 3]


def test_who_waits_for_the_classic_group_is_told_to_join_again() -> None:
    coordinator = coordinator_with(partition_count=4)
    [client] = classic_group(coordinator, 1)
    waiting = coordinator.start_join(protocols=protocols())
    ConsumerMember(coordinator, "new").join()
    assert kind_of(coordinator.reply(waiting)) is ErrorKind.REBALANCE_IN_PROGRESS
    client.rejoin()


def test_classic_member_is_taken_out_by_its_own_session() -> None:
    coordinator = coordinator_with(partition_count=4)
    clients = classic_group(coordinator)
    consumer = ConsumerMember(coordinator, "new")
    consumer.join()
    coordinator.advance(SESSION_MS - 1)
    assert kind_of(clients[0].beat()) is ErrorKind.REBALANCE_IN_PROGRESS
    coordinator.advance(1)
    assert kind_of(clients[1].beat()) is ErrorKind.UNKNOWN_MEMBER_ID
    clients[0].rejoin()


def test_classic_member_that_does_not_join_again_is_taken_out() -> None:
    coordinator = coordinator_with(partition_count=4)
    [client] = classic_group(coordinator, 1)
    consumer = ConsumerMember(coordinator, "new")
    consumer.join()
    for _ in range(REBALANCE_MS // (SESSION_MS // 2)):
        assert kind_of(client.beat()) is ErrorKind.REBALANCE_IN_PROGRESS
        consumer.beat()
        coordinator.advance(SESSION_MS // 2)
    assert kind_of(client.beat()) is ErrorKind.UNKNOWN_MEMBER_ID
    assert consumer.beat().assignment == place("topic", 0, 1, 2, 3)


def test_classic_member_commits_with_its_generation() -> None:
    coordinator = coordinator_with(partition_count=4)
    [client] = classic_group(coordinator, 1)
    ConsumerMember(coordinator, "new").join()
    committed = coordinator.commit(5, client.member_id, client.generation_id, knows_member_epochs=False)
    assert isinstance(committed, Committed)
    refused = coordinator.commit(6, client.member_id, client.generation_id + 1)
    assert kind_of(refused) is ErrorKind.ILLEGAL_GENERATION


def test_consumers_do_not_answer_to_the_classic_protocol() -> None:
    coordinator = coordinator_with(partition_count=4)
    [consumer] = joined(coordinator, "a")
    assert kind_of(coordinator.heartbeat("a", consumer.epoch)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.reply(coordinator.start_sync("a", consumer.epoch))) is ErrorKind.UNKNOWN_MEMBER_ID
    left = coordinator.leave("a", "nobody")
    assert [kind_of(error) for error in left.errors] == [ErrorKind.UNKNOWN_MEMBER_ID] * 2
    stranger = coordinator.reply(coordinator.start_join(protocol_type="connect"))
    assert kind_of(stranger) is ErrorKind.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("policy", ["downgrade", "disabled"])
def test_policy_may_forbid_to_upgrade(policy: str) -> None:
    coordinator = coordinator_with(consumer_migration_policy=policy)
    [client] = classic_group(coordinator, 1)
    refused = ConsumerMember(coordinator, "a").send(
        rebalance_timeout_ms=1, owned=frozenset[object](), topics=("topic",)
    )
    assert kind_of(refused) is ErrorKind.GROUP_ID_NOT_FOUND
    assert client.beat() == Alive()


def test_policy_may_forbid_to_downgrade() -> None:
    coordinator = coordinator_with(consumer_migration_policy="upgrade")
    [client] = classic_group(coordinator, 1)
    consumer = ConsumerMember(coordinator, "a")
    consumer.join()
    consumer.leave()
    reconcile([client], [])
    assert described(coordinator).state == "Stable"
    assert client.owned == {0, 1, 2, 3}


def test_classic_group_of_no_consumers_is_left_alone() -> None:
    coordinator = coordinator_with()
    coordinator.stable_group(1, protocol_type="connect")
    refused = ConsumerMember(coordinator, "a").send(
        rebalance_timeout_ms=1, owned=frozenset[object](), topics=("topic",)
    )
    assert kind_of(refused) is ErrorKind.GROUP_ID_NOT_FOUND


def test_static_member_is_moved_over_in_one_step() -> None:
    coordinator = coordinator_with(partition_count=4)
    classic_group(coordinator, 1, group_instance_id="one")
    moved = ConsumerMember(coordinator, "a", instance_id="one")
    assert moved.join().assignment == place("topic", 0, 1, 2, 3)
    assert [member.member_id for member in described(coordinator).members] == ["a"]


@pytest.mark.parametrize(("assignor", "error"), [("cooperative-sticky", None), ("own", ErrorKind.GROUP_ID_NOT_FOUND)])
def test_assignment_with_data_of_an_own_assignor_keeps_a_group_classic(assignor: str, error: ErrorKind | None) -> None:
    coordinator = coordinator_with(partition_count=4)
    leader = coordinator.join(protocols=((assignor, subscription()),))
    assignment = encode_assignment(1, [("topic", 0)])[:-4] + pack(">i", 4) + b"data"
    coordinator.start_sync(leader.member_id, leader.generation_id, assignments={leader.member_id: assignment})
    reply = ConsumerMember(coordinator, "a").send(rebalance_timeout_ms=1, owned=frozenset[object](), topics=("topic",))
    assert (kind_of(reply) if error else None) is error
    assert len(coordinator.listed(types=frozenset({"consumer"}))) == (error is None)


def test_group_with_more_topics_and_partitions_than_are_decoded_is_not_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the two members subscribes to a topic, and has two partitions of it assigned."""
    monkeypatch.setattr("conveyor.groups.migration.protocol_change.MAX_GROUP_ITEMS", 7)
    coordinator = coordinator_with()
    classic = classic_group(coordinator)
    refused = ConsumerMember(coordinator, "a").send(rebalance_timeout_ms=1, owned=frozenset(), topics=("topic",))
    assert kind_of(refused) is ErrorKind.GROUP_ID_NOT_FOUND
    assert [client.beat() for client in classic] == [Alive()] * 2
    monkeypatch.setattr("conveyor.groups.migration.protocol_change.MAX_GROUP_ITEMS", 8)
    assert ConsumerMember(coordinator, "a").join().member_epoch > 0


class CountedProtocols(tuple[tuple[str, bytes], ...]):
    """Protocols that count how often they are gone through."""

    __slots__ = ()
    passes = 0

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        CountedProtocols.passes += 1
        return super().__iter__()


def test_protocols_of_classic_members_are_gone_through_once_for_each_join() -> None:
    coordinator = coordinator_with()
    many = tuple((f"assignor-{number}", subscription()) for number in range(50))
    classic_group(coordinator, size=1)
    joined(coordinator, "a")
    for number in range(5):
        coordinator.join(new_member_id=f"b-{number}", protocols=(*many, *protocols()))
    coordinator.join(new_member_id="c", protocols=protocols())
    group = coordinator.machine._consumers.find(GROUP)
    assert group is not None
    for member_id, member in group.subscriptions.items():
        if member.classic is not None:
            counted = replace(member.classic, protocols=CountedProtocols(member.classic.protocols))
            group.subscriptions[member_id] = replace(member, classic=counted)
    CountedProtocols.passes = 0
    coordinator.join(new_member_id="d", protocols=(*many, *protocols()))
    assert CountedProtocols.passes < 5 * len(group.subscriptions)
