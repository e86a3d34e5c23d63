"""DescribeAcls, CreateAcls and DeleteAcls. Source: AclApis, AclControlManager."""

from collections.abc import AsyncIterator
from threading import get_ident
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as E

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.acls import MAX_FILTERS
from conveyor.kafka_api.wire.codec import build_response
from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.kernel.access.caller import ANONYMOUS
from tests.unit.broker.parts import running_parts
from tests.unit.kafka_api.client import MemoryClient

DESCRIBE, CREATE, DELETE = 29, 30, 31
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER = 2, 3, 4
ALL, READ, WRITE = 2, 3, 4
DENY, ALLOW = 2, 3


@pytest.fixture
async def client() -> AsyncIterator[MemoryClient]:
    async with running_parts({"access.enabled": True, "access.super_users": str(ANONYMOUS)}) as broker:
        yield MemoryClient(broker)


def creation(name: str = "orders", **more: Any) -> dict[str, Any]:
    whole = {"resource_type": TOPIC, "resource_name": name, "resource_pattern_type": LITERAL, "principal": "User:alice"}
    return whole | {"host": "*", "operation": READ, "permission_type": ALLOW} | more


def chosen(name: str | None = None, **more: Any) -> dict[str, Any]:
    names = {"resource_name_filter": name, "principal_filter": None, "host_filter": None}
    kinds = dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), ANY)
    return names | kinds | more


async def create(client: MemoryClient, *creations: dict[str, Any], version: int = 3) -> list[E]:
    answer = await client.ask(CREATE, version, creations=creations)
    return [result.error_code for result in answer.results]


async def described(client: MemoryClient, version: int = 3, **more: Any) -> dict[tuple[int, str, int], list[Any]]:
    """Return who may do what with each resource."""
    answer = await client.ask(DESCRIBE, version, **chosen(**more))
    assert (answer.error_code, answer.error_message) == (E.none, None)
    return {
        (resource.resource_type, resource.resource_name, resource.pattern_type): [
            (acl.principal, acl.host, acl.operation, acl.permission_type) for acl in resource.acls
        ]
        for resource in answer.resources
    }


async def deleted(client: MemoryClient, *filters: dict[str, Any], version: int = 3) -> list[Any]:
    """Return the names of what each filter has removed, or its error."""
    answer = await client.ask(DELETE, version, filters=filters)
    return [
        result.error_code or [acl.resource_name for acl in result.matching_acls] for result in answer.filter_results
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_created_described_and_deleted_in_each_version(client: MemoryClient, version: int) -> None:
    assert {SERVED_APIS[key].versions for key in (DESCRIBE, CREATE, DELETE)} == {range(1, 4)}
    acls = creation(), creation("ord", resource_pattern_type=PREFIXED, permission_type=DENY, operation=ALL, host="::1")
    assert await create(client, *acls, version=version) == [E.none, E.none]
    assert await described(client, version) == {
        (TOPIC, "orders", LITERAL): [("User:alice", "*", READ, ALLOW)],
        (TOPIC, "ord", PREFIXED): [("User:alice", "::1", ALL, DENY)],
    }
    answer = await client.ask(DELETE, version, filters=[chosen(operation=READ)])
    [result] = answer.filter_results
    [acl] = result.matching_acls
    assert (result.error_code, result.error_message, acl.error_code, acl.error_message) == (E.none, None, E.none, None)
    assert (acl.resource_type, acl.resource_name, acl.pattern_type) == (TOPIC, "orders", LITERAL)
    assert (acl.principal, acl.host, acl.operation, acl.permission_type) == ("User:alice", "*", READ, ALLOW)
    assert list(await described(client, version)) == [(TOPIC, "ord", PREFIXED)]


async def test_acls_are_listed_by_resource(client: MemoryClient) -> None:
    groups = creation(resource_type=GROUP)
    acls = [creation(), groups, creation(operation=WRITE), creation(resource_pattern_type=PREFIXED)]
    assert await create(client, *acls) == [E.none] * 4
    assert await described(client) == {
        (TOPIC, "orders", LITERAL): [("User:alice", "*", READ, ALLOW), ("User:alice", "*", WRITE, ALLOW)],
        (GROUP, "orders", LITERAL): [("User:alice", "*", READ, ALLOW)],
        (TOPIC, "orders", PREFIXED): [("User:alice", "*", READ, ALLOW)],
    }
    assert list(await described(client, resource_type_filter=GROUP)) == [(GROUP, "orders", LITERAL)]
    assert list(await described(client, name="orders", pattern_type_filter=PREFIXED)) == [(TOPIC, "orders", PREFIXED)]
    assert await described(client, principal_filter="User:bob") == {}


async def test_filter_may_match_a_name(client: MemoryClient) -> None:
    await create(client, creation(), creation("*"), creation("ord", resource_pattern_type=PREFIXED), creation("ord"))
    found = await described(client, name="orders", pattern_type_filter=MATCH)
    assert found.keys() == {(TOPIC, "orders", LITERAL), (TOPIC, "*", LITERAL), (TOPIC, "ord", PREFIXED)}


async def test_acl_that_exists_is_no_error_and_stays_one(client: MemoryClient) -> None:
    assert await create(client, creation(), creation()) == [E.none, E.none]
    assert await create(client, creation()) == [E.none]
    assert await described(client) == {(TOPIC, "orders", LITERAL): [("User:alice", "*", READ, ALLOW)]}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"resource_type": number} for number in (0, ANY, 8, -1)),
        *({"resource_pattern_type": number} for number in (0, ANY, MATCH, 5, -1)),
        *({"operation": number} for number in (0, ANY, 16, -1)),
        *({"permission_type": number} for number in (0, ANY, 4, -1)),
        {"resource_name": ""},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
        {"resource_type": CLUSTER},
        {"resource_name": "x" * 1_025},
    ],
    ids=str,
)
async def test_acl_that_cannot_be_is_refused_and_the_others_are_created(
    client: MemoryClient, wrong: dict[str, Any]
) -> None:
    codes = await create(client, creation("first"), creation(**wrong), creation("last"))
    assert codes == [E.none, E.invalid_request, E.none]
    assert [name for _, name, _ in await described(client)] == ["first", "last"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"resource_type_filter": number} for number in (0, 8, -1)),
        *({"pattern_type_filter": number} for number in (0, 5, -1)),
        *({"operation": number} for number in (0, 16, -1)),
        *({"permission_type": number} for number in (0, 4, -1)),
    ],
    ids=str,
)
async def test_filter_that_cannot_be_means_nothing(client: MemoryClient, wrong: dict[str, Any]) -> None:
    await create(client, creation("first"), creation("last"))
    results = await deleted(client, chosen("first"), chosen(**wrong), chosen("nothing"))
    assert results == [["first"], E.invalid_request, []]
    answer = await client.ask(DESCRIBE, 3, **chosen(**wrong))
    assert (answer.error_code, answer.resources) == (E.invalid_request, ())
    assert "an ACL cannot have the" in answer.error_message
    assert [name for _, name, _ in await described(client)] == ["last"]


async def test_each_filter_is_answered_with_what_it_means(client: MemoryClient) -> None:
    await create(client, creation("a"), creation("b"), creation("c", principal="User:bob"))
    results = await deleted(client, chosen(principal_filter="User:alice"), chosen("b"), chosen("b"), chosen("d"))
    assert results == [["a", "b"], ["b"], ["b"], []]
    assert [name for _, name, _ in await described(client)] == ["c"]


async def test_nothing_asked_is_nothing_done(client: MemoryClient) -> None:
    assert await create(client) == []
    assert await deleted(client) == []
    assert await described(client) == {}


async def test_many_acls_are_created_in_pieces_and_deleted_in_one(client: MemoryClient) -> None:
    count = 3 * SLICE_ITEMS
    acls = [creation(f"t{number}") for number in range(count)]
    assert await create(client, *acls[:-1], creation(""), acls[-1]) == [
        *[E.none] * (count - 1),
        E.invalid_request,
        E.none,
    ]
    assert [name for _, name, _ in await described(client)] == [f"t{number}" for number in range(count)]
    results = await deleted(client, *(chosen(f"t{number}") for number in range(count)), chosen(operation=0), chosen())
    names = [f"t{number}" for number in range(count)]
    assert results == [*([name] for name in names), E.invalid_request, names]
    assert await described(client) == {}


async def test_filters_have_a_limit(client: MemoryClient) -> None:
    await create(client, creation())
    assert set(await deleted(client, *[chosen()] * (MAX_FILTERS + 1))) == {E.invalid_request}
    assert len(await described(client)) == 1


async def test_long_answers_are_encoded_in_a_thread(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(client, *(creation(f"t{number}") for number in range(SLICE_ITEMS + 1)))
    threads: list[int] = []

    def build(*arguments: Any) -> Any:
        threads.append(get_ident())
        return build_response(*arguments)

    monkeypatch.setattr("conveyor.kafka_api.wire.call.build_response", build)
    assert len(await described(client)) == SLICE_ITEMS + 1
    [names] = await deleted(client, chosen())
    assert len(names) == SLICE_ITEMS + 1
    assert len(threads) == 2
    assert get_ident() not in threads


async def test_acls_are_for_those_who_may_describe_or_alter_the_cluster() -> None:
    async with running_parts({"access.enabled": True, "access.super_users": "User:admin"}) as broker:
        client = MemoryClient(broker)
        assert await create(client, creation(), creation()) == [E.cluster_authorization_failed] * 2
        assert await deleted(client, chosen(), chosen()) == [E.cluster_authorization_failed] * 2
        answer = await client.ask(DESCRIBE, 3, **chosen())
        assert (answer.error_code, answer.resources) == (E.cluster_authorization_failed, ())
