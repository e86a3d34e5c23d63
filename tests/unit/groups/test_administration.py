"""Administrative requests: list, describe and delete groups, delete offsets."""

from struct import pack

import pytest

from conveyor.groups.classic.embedded_protocol import MAX_ITEMS, decode_subscription
from conveyor.groups.group_commands import DeleteGroup, DeleteOffsets, DescribeGroup, ListGroups, OffsetToCommit
from conveyor.groups.replies import Deleted, DescribedGroup, OffsetsDeleted
from conveyor.kernel.errors import ErrorKind
from conveyor.records.record_fields import FieldReader
from tests.unit.groups.coordinator import GROUP, RANGE, Coordinator, kind_of


def subscription(*topics: str) -> bytes:
    """Return the subscription (version 0) of a classic consumer: its topics, no user data."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


def listed(coordinator: Coordinator, **filters: frozenset[str]) -> list[tuple[str, str, str, str]]:
    groups = coordinator.listed(**filters)
    return [(group.group_id, group.protocol_type, group.state, group.group_type) for group in groups]


def described(coordinator: Coordinator) -> DescribedGroup:
    reply = coordinator.ask(DescribeGroup(group_id=GROUP))
    assert isinstance(reply, DescribedGroup)
    return reply


def delete_offsets(coordinator: Coordinator, *topics: str) -> list[ErrorKind | None]:
    reply = coordinator.ask(DeleteOffsets(group_id=GROUP, partitions=tuple((topic, 0) for topic in topics)))
    assert isinstance(reply, OffsetsDeleted)
    return [None if error is None else error.kind for error in reply.errors]


def commit_without_a_group(coordinator: Coordinator, *topics: str) -> None:
    places = [OffsetToCommit(topic=topic, partition=0, offset=1, leader_epoch=-1, metadata="") for topic in topics]
    coordinator.commit(0, offsets=tuple(places))


def test_groups_are_listed_with_their_states() -> None:
    coordinator = Coordinator()
    coordinator.commit(5, group_id="simple")
    coordinator.stable_group(1)
    coordinator.start_join(group_id="anew", requires_known_id=True)
    assert listed(coordinator) == [
        ("anew", "", "Empty", "classic"),
        (GROUP, "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
    ]


def test_list_is_filtered_by_state_and_type() -> None:
    coordinator = Coordinator()
    coordinator.commit(5, group_id="simple")
    coordinator.stable_group(1)
    assert [group[0] for group in listed(coordinator, states=frozenset({"stable", "dead"}))] == [GROUP]
    assert [group[0] for group in listed(coordinator, types=frozenset({"classic"}))] == [GROUP, "simple"]
    assert listed(coordinator, types=frozenset({"consumer"})) == []


def test_only_groups_that_are_asked_for_and_exist_are_listed() -> None:
    coordinator = Coordinator()
    for group_id in ("one", "two"):
        coordinator.commit(5, group_id=group_id)
    reply = coordinator.ask(ListGroups(group_ids=("gone", "two")))
    assert [group.group_id for group in reply.groups] == ["two"]


def test_stable_group_is_described_with_its_members() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1, group_instance_id="one")
    reply = described(coordinator)
    assert (reply.state, reply.protocol_type, reply.protocol_name) == ("Stable", "consumer", "range")
    [described_member] = reply.members
    assert (described_member.member_id, described_member.group_instance_id, described_member.client_id) == (
        member,
        "one",
        "client",
    )
    assert (described_member.subscription, described_member.assignment) == (RANGE[0][1], member.encode())


def test_rebalancing_group_is_described_without_assignments() -> None:
    coordinator = Coordinator()
    coordinator.join()
    reply = described(coordinator)
    assert (reply.state, reply.protocol_name) == ("CompletingRebalance", "")
    assert [(member.subscription, member.assignment) for member in reply.members] == [(b"", b"")]
    coordinator.start_join()
    assert described(coordinator).state == "PreparingRebalance"


def test_group_that_has_nothing_but_offsets_is_empty() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    assert described(coordinator) == DescribedGroup(state="Empty", protocol_type="", protocol_name="", members=())


def test_unknown_group_is_not_found() -> None:
    coordinator = Coordinator()
    for command in (
        DescribeGroup(group_id=GROUP),
        DeleteGroup(group_id=GROUP),
        DeleteOffsets(group_id=GROUP, partitions=()),
    ):
        assert kind_of(coordinator.ask(command)) is ErrorKind.GROUP_ID_NOT_FOUND


def test_deleted_group_is_forgotten_with_its_offsets() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.commit(5, member, generation_id)
    coordinator.leave(member)
    assert coordinator.ask(DeleteGroup(group_id=GROUP)) == Deleted()
    for _ in range(2):
        assert (listed(coordinator), coordinator.committed()) == ([], ())
        coordinator.crash()
    assert coordinator.join().generation_id == 1


def test_group_with_members_is_not_deleted() -> None:
    coordinator = Coordinator()
    coordinator.join()
    assert kind_of(coordinator.ask(DeleteGroup(group_id=GROUP))) is ErrorKind.NON_EMPTY_GROUP


def test_offsets_of_topics_that_are_read_are_kept() -> None:
    coordinator = Coordinator()
    commit_without_a_group(coordinator, "read", "left")
    coordinator.stable_group(1, protocols=(("range", subscription("read")),))
    assert delete_offsets(coordinator, "read", "left", "other") == [ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC, None, None]
    assert [offset.topic for offset in coordinator.committed()] == ["read"]


def test_offsets_are_kept_while_nobody_knows_what_is_read() -> None:
    coordinator = Coordinator()
    commit_without_a_group(coordinator, "left")
    coordinator.stable_group(1, protocols=(("range", b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xff"),))
    assert delete_offsets(coordinator, "left") == [ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC]


def test_subscriptions_are_decoded_once_however_many_offsets_are_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    coordinator.stable_group(3, protocols=(("range", subscription("read", "too")),))
    read = counted_names(monkeypatch)
    assert delete_offsets(coordinator, *["left"] * 250, "too") == [None] * 250 + [ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC]
    assert read == ["read", "too"], "members with the same topics are decoded once as well"


def test_no_more_topics_are_decoded_than_a_group_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.classic.embedded_protocol.MAX_GROUP_ITEMS", 50)
    coordinator = Coordinator()
    joined = coordinator.join(protocols=(("range", subscription("0")),))
    others = [
        coordinator.start_join(protocols=(("range", subscription(*[str(number)] * 10)),)) for number in range(1, 11)
    ]
    coordinator.join(joined.member_id, protocols=(("range", subscription("0")),))
    coordinator.assign(joined.member_id, 2, *[coordinator.reply(token).member_id for token in others])
    read = counted_names(monkeypatch)
    assert delete_offsets(coordinator, "left") == [ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC]
    assert len(read) < 70


def counted_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names that are decoded from now on."""
    read: list[str] = []

    def text(fields: FieldReader) -> str:
        read.append(name := fields.string() or "")
        return name

    monkeypatch.setattr(FieldReader, "text", text)
    return read


def test_subscription_to_more_topics_than_are_decoded_counts_as_one_to_all() -> None:
    assert decode_subscription(subscription(*[""] * MAX_ITEMS)) is not None
    assert decode_subscription(subscription(*[""] * (MAX_ITEMS + 1))) is None
    coordinator = Coordinator()
    coordinator.stable_group(1, protocols=(("range", subscription(*[""] * (MAX_ITEMS + 1))),))
    assert delete_offsets(coordinator, "left") == [ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC]


@pytest.mark.parametrize("topics", [1, 2])
def test_topics_and_partitions_of_a_subscription_are_counted_together(topics: int) -> None:
    owned = pack(">hi", 1, 1) + pack(">h", 0) + pack(">i", -1) + pack(">i", topics) + (pack(">hi", 0, 0) * (topics - 1))
    owned += pack(">h", 0)
    count = MAX_ITEMS - 1 - topics
    assert decode_subscription(owned + pack(">i", count) + bytes(4 * count)) is not None
    assert decode_subscription(owned + pack(">i", count + 1) + bytes(4 * count + 4)) is None


def test_offsets_of_an_empty_group_are_deleted() -> None:
    coordinator = Coordinator()
    commit_without_a_group(coordinator, "one", "two")
    assert delete_offsets(coordinator, "one") == [None]
    coordinator.crash()
    assert [offset.topic for offset in coordinator.committed()] == ["two"]


def test_offsets_of_a_living_group_of_no_consumers_are_kept() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1, protocol_type="connect")
    command = DeleteOffsets(group_id=GROUP, partitions=(("topic", 0),))
    assert kind_of(coordinator.ask(command)) is ErrorKind.NON_EMPTY_GROUP
    assert kind_of(coordinator.ask(DeleteOffsets(group_id="", partitions=()))) is ErrorKind.INVALID_GROUP_ID
