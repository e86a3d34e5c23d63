"""The members of a classic group have a limited number of bytes in all."""

from typing import Any

import pytest

from conveyor.groups.classic.classic_member import MAX_GROUP_BYTES
from conveyor.groups.replies import JoinRefused, Synced
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import ConsumerMember, coordinator_with
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of
from tests.unit.groups.migration.test_protocol_change import classic_group, protocols

SMALL = (("range", b""),)
LARGE = (("range", bytes(MAX_GROUP_BYTES // 2 - 1_000)),)


def of_records(coordinator: Coordinator) -> int:
    """Return the size of the largest record."""
    return max(len(record.value or b"") for record in coordinator.log)


def stable_static_group(coordinator: Coordinator, *offers: tuple[tuple[str, bytes], ...]) -> None:
    first = coordinator.join(group_instance_id="0", protocols=offers[0])
    tokens = [
        coordinator.start_join(group_instance_id=str(number), protocols=offer)
        for number, offer in enumerate(offers[1:], start=1)
    ]
    joined = coordinator.join(first.member_id, group_instance_id="0", protocols=offers[0])
    coordinator.assign(first.member_id, joined.generation_id, *[member.member_id for member in joined.members])
    assert not any(isinstance(coordinator.reply(token), JoinRefused) for token in tokens)


def test_member_that_brings_too_much_is_refused_and_the_group_goes_on() -> None:
    coordinator = Coordinator()
    stable_static_group(coordinator, LARGE, LARGE)
    for fields in ({}, {"group_instance_id": "2"}, {"requires_known_id": True}):
        refused = coordinator.reply(coordinator.start_join(protocols=LARGE, **fields))
        assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert [group.state for group in coordinator.listed()] == ["Stable"]


def test_static_member_that_returns_counts_once() -> None:
    coordinator = Coordinator()
    stable_static_group(coordinator, LARGE, LARGE)
    assert coordinator.join(group_instance_id="1", protocols=LARGE).generation_id == 2
    assert coordinator.join(group_instance_id="1", protocols=SMALL).generation_id == 2
    assert of_records(coordinator) <= MAX_GROUP_BYTES


@pytest.mark.parametrize(
    "fields",
    [{"client_id": "ä" * (MAX_GROUP_BYTES // 2)}, {"protocols": (*LARGE, *LARGE, ("sticky", bytes(3_000)))}],
)
def test_names_and_all_protocols_of_a_member_count(fields: dict[str, Any]) -> None:
    coordinator = Coordinator(member_metadata_max_bytes=2 * MAX_GROUP_BYTES)
    stable_static_group(coordinator, SMALL, (("range", bytes(3_000)),))
    refused = coordinator.reply(coordinator.start_join(group_instance_id="1", **fields))
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert coordinator.join(group_instance_id="1", protocols=LARGE).generation_id == 2


def test_assignments_count_also_that_of_the_member_that_joins() -> None:
    coordinator = Coordinator()
    joined = coordinator.join(group_instance_id="0", protocols=SMALL)
    assignments = {joined.member_id: bytes(MAX_GROUP_BYTES // 2 + 2_000)}
    coordinator.start_sync(joined.member_id, joined.generation_id, assignments=assignments)
    refused = coordinator.reply(coordinator.start_join(group_instance_id="0", protocols=LARGE))
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert coordinator.join(group_instance_id="0", protocols=SMALL).generation_id == joined.generation_id


def test_leader_that_assigns_too_much_is_refused_and_the_group_rebalances() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2, protocols=LARGE)
    rejoin = coordinator.start_join(members[0], protocols=LARGE)
    coordinator.join(members[1], protocols=LARGE)
    generation_id = coordinator.reply(rejoin).generation_id
    waiting = coordinator.start_sync(members[1], generation_id)
    written = len(coordinator.log)
    large = {member_id: bytes(2_000) for member_id in members}
    refused = coordinator.reply(coordinator.start_sync(members[0], generation_id, assignments=large))
    assert kind_of(refused) is ErrorKind.UNKNOWN_SERVER_ERROR
    assert kind_of(coordinator.reply(waiting)) is ErrorKind.REBALANCE_IN_PROGRESS
    assert len(coordinator.log) == written
    rejoin = coordinator.start_join(members[0], protocols=LARGE)
    coordinator.join(members[1], protocols=LARGE)
    generation_id = coordinator.reply(rejoin).generation_id
    to_strangers = {"stranger": bytes(2 * MAX_GROUP_BYTES)}
    synced = coordinator.reply(coordinator.start_sync(members[0], generation_id, assignments=to_strangers))
    assert isinstance(synced, Synced)


def test_classic_members_of_a_consumer_group_have_no_more() -> None:
    coordinator = coordinator_with()
    [classic] = classic_group(coordinator, size=1)
    ConsumerMember(coordinator, "a").join()
    name, subscription = protocols()[0]
    large = ((name, subscription), ("other", bytes(MAX_GROUP_BYTES // 2 - 1_000)))
    coordinator.join(classic.member_id, protocols=large)
    coordinator.join(protocols=large)
    refused = coordinator.reply(coordinator.start_join(protocols=large))
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED


def test_consumer_group_that_is_too_large_for_a_record_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinator_with()
    classic_group(coordinator)
    consumer = ConsumerMember(coordinator, "a")
    consumer.join()
    monkeypatch.setattr("conveyor.groups.classic.roster.MAX_GROUP_BYTES", 100)
    consumer.leave()
    [listed] = coordinator.listed()
    assert (listed.group_id, listed.group_type) == (GROUP, "consumer")
