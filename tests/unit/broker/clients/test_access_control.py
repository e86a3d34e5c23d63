"""ACLs of a running broker: they count at once, and long work on them leaves the loop to others."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import access_control
from conveyor.broker.clients.access_control import AccessControl
from conveyor.cluster.acls import MAX_FILTERS, AclFilter, meant
from conveyor.cluster.changes import AclAdded, AclRemoved
from conveyor.kernel.access.acl import OPERATIONS, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import NodeId
from tests.unit.broker.parts import Storage, propose, running_parts

READ, WRITE, TOPIC = AclOperation.READ, AclOperation.WRITE, ResourceType.TOPIC
ACL = Acl(TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", READ, Permission.ALLOW)
DENIAL = msgspec.structs.replace(ACL, permission=Permission.DENY)
SETTINGS = {"access.enabled": True, "access.super_users": "User:admin; User:ops"}


def caller(user: str) -> Caller:
    return Caller(Principal(PrincipalType.USER, user), "192.0.2.1", PLAINTEXT, 1)


ADMIN, ALICE = caller("admin"), caller("alice")


@pytest.fixture
async def broker() -> AsyncIterator[BrokerNode]:
    async with running_parts(SETTINGS) as running:
        yield running


@pytest.fixture
def access(broker: BrokerNode) -> AccessControl:
    return broker.clients.access


def may_read(access: AccessControl, who: Caller = ALICE) -> bool:
    return access.allows(who, READ, TOPIC, "orders")


async def test_everybody_may_do_everything_unless_access_is_enabled() -> None:
    async with running_parts() as broker:
        access = broker.clients.access
        assert access.rules is None
        assert may_read(access)
        assert access.operations(ALICE, TOPIC, "orders") == sum(1 << each.number for each in OPERATIONS[TOPIC])
        for work in (access.add(ADMIN, [ACL]), access.find(AclFilter()), access.remove(ADMIN, [AclFilter()])):
            with pytest.raises(RequestError, match=r"access\.enabled=true") as refused:
                await work
            assert refused.value.kind is ErrorKind.SECURITY_DISABLED


async def test_acl_counts_once_it_is_added_until_it_is_removed(access: AccessControl) -> None:
    assert not may_read(access)
    assert await access.add(ADMIN, [ACL]) == [None]
    assert may_read(access)
    assert await access.add(ADMIN, [DENIAL, ACL]) == [None, None]
    assert not may_read(access)
    assert await access.remove(ADMIN, [AclFilter(permission=Permission.DENY)]) == [[DENIAL]]
    assert may_read(access)
    assert await access.find(AclFilter(principal="User:alice")) == [ACL]
    assert await access.remove(ADMIN, [AclFilter(TOPIC), AclFilter(principal="User:bob")]) == [[ACL], []]
    assert not may_read(access)


async def test_acl_of_another_broker_counts_as_soon_as_it_is_observed(broker: BrokerNode) -> None:
    await propose(broker, AclAdded(acl=ACL))
    assert may_read(broker.clients.access)
    await propose(broker, AclRemoved(acl=ACL))
    assert not may_read(broker.clients.access)


async def test_acls_stay_over_a_restart() -> None:
    storage = Storage()
    async with running_parts(SETTINGS, storage) as broker:
        await broker.clients.access.add(ADMIN, [ACL])
    async with running_parts(SETTINGS, storage) as broker:
        assert may_read(broker.clients.access)


async def test_super_users_and_brokers_may_do_everything(broker: BrokerNode) -> None:
    access = broker.clients.access
    await access.add(ADMIN, [msgspec.structs.replace(DENIAL, principal="User:*")])
    assert [may_read(access, who) for who in (ADMIN, caller("ops"), Caller.broker(NodeId(1)))] == [True] * 3
    assert not may_read(access, caller("User:admin"))


async def test_resource_without_acls_may_be_everybodys() -> None:
    async with running_parts(SETTINGS | {"access.allow_if_no_acl": True}) as broker:
        access = broker.clients.access
        assert may_read(access)
        await access.add(ADMIN, [msgspec.structs.replace(ACL, principal="User:bob")])
        assert not may_read(access)


async def test_operations_are_kafkas_bits(access: AccessControl) -> None:
    await access.add(ADMIN, [ACL])
    assert access.operations(ALICE, TOPIC, "orders") == 1 << 3 | 1 << 8  # Read, and Describe, which it implies.
    assert access.operations(ALICE, ResourceType.GROUP, "orders") == 0


async def test_acl_that_could_never_count_is_refused_alone(access: AccessControl) -> None:
    nameless = msgspec.structs.replace(ACL, name="")
    first, second = await access.add(ADMIN, [nameless, ACL])
    assert first is not None
    assert (first.kind, second) == (ErrorKind.INVALID_REQUEST, None)
    assert await access.find(AclFilter()) == [ACL]


async def test_request_has_a_limit_of_filters(access: AccessControl) -> None:
    await access.add(ADMIN, [ACL])
    with pytest.raises(RequestError, match="1001 filters of ACLs: a request may have 1000"):
        await access.remove(ADMIN, [AclFilter()] * (MAX_FILTERS + 1))
    assert may_read(access)


async def test_filters_mean_a_limited_number_of_acls_together(
    access: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer lists them for each filter."""
    monkeypatch.setattr(access_control, "MAX_FOUND", 5)
    await access.add(ADMIN, [ACL, DENIAL])
    with pytest.raises(RequestError, match="mean more than 5 ACLs together"):
        await access.remove(ADMIN, [AclFilter()] * 3)
    assert may_read(access) is False
    assert await access.remove(ADMIN, [AclFilter()] * 2) == [[ACL, DENIAL]] * 2
    assert await access.find(AclFilter()) == []


async def test_acls_and_filters_are_compared_a_slice_in_a_turn(
    access: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    turns = 0

    def counted(acls: Sequence[Acl], filters: Sequence[AclFilter]) -> list[list[Acl]]:
        compared.append(len(acls) * len(filters))
        return meant(acls, filters)

    async def count_turns(work: asyncio.Task[object]) -> None:
        nonlocal turns
        while not work.done():
            turns += 1
            await asyncio.sleep(0)

    acls = [msgspec.structs.replace(ACL, name=f"t{number}") for number in range(1_000)]
    await access.add(ADMIN, acls)
    monkeypatch.setattr(access_control, "meant", counted)
    removal: asyncio.Task[object] = asyncio.ensure_future(
        access.remove(ADMIN, [AclFilter(name=f"t{number}") for number in range(0, 1_000, 4)])
    )
    await count_turns(removal)
    assert sum(compared) == 250 * 1_000
    assert max(compared) <= access_control._COMPARISONS_IN_SLICE
    assert turns >= len(compared) == 50
    assert [acl.name for acl in await access.find(AclFilter())] == [
        f"t{number}" for number in range(1_000) if number % 4
    ]


async def test_acl_that_another_client_removes_meanwhile_is_not_listed(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = broker.clients.access
    await access.add(ADMIN, [ACL, DENIAL])
    find = access._meant

    async def find_and_lose(filters: Sequence[AclFilter]) -> list[list[Acl]]:
        found = await find(filters)
        await propose(broker, AclRemoved(acl=ACL))
        return found

    monkeypatch.setattr(access, "_meant", find_and_lose)
    assert await access.remove(ADMIN, [AclFilter()]) == [[DENIAL]]


async def test_removal_finds_what_another_broker_has_added_before(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a user would keep a right after the answer that it is gone."""
    catch_up = broker.metadata.catch_up

    async def observe() -> object:
        await propose(broker, AclAdded(acl=ACL))
        return await catch_up()

    monkeypatch.setattr(broker.metadata, "catch_up", observe)
    assert await broker.clients.access.remove(ADMIN, [AclFilter()]) == [[ACL]]


async def test_nothing_is_removed_while_the_metadata_store_does_not_answer(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise StorageFailure("the store is away")

    await broker.clients.access.add(ADMIN, [ACL])
    monkeypatch.setattr(broker.metadata, "catch_up", fail)
    with pytest.raises(RequestError, match="the store is away") as refused:
        await broker.clients.access.remove(ADMIN, [AclFilter()])
    assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
    assert may_read(broker.clients.access)
