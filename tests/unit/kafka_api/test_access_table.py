"""Every API refuses who lacks one of the rights that it declares, without any effect, and serves who has all of them.

The requests are made from kio's schemas and from the declarations, so that a new API is in the table.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_request_schema

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.wire.skim import without_none
from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.kernel.access.acl import ANY, CLUSTER_NAME, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import ANONYMOUS, Principal, PrincipalType
from conveyor.kernel.access.declared_access import Access, AnyOf
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import request, response

ALICE, BOB = (Principal(PrincipalType.USER, name) for name in ("alice", "bob"))
"""Alice has the rights, and Bob has none."""
SETTINGS = {
    "access.enabled": True, "groups.offsets_partitions": 1, "groups.initial_rebalance_delay_ms": 0,
    "transactions.state_partitions": 1, "transactions.two_phase_commit_enable": True, "topics.flush_policy": "os",
}  # fmt: skip
NAMES = {
    ResourceType.TOPIC: "t", ResourceType.GROUP: "g", ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.TRANSACTIONAL_ID: "x",
}  # fmt: skip
CODES = {
    ResourceType.TOPIC: 29, ResourceType.GROUP: 30, ResourceType.CLUSTER: 31, ResourceType.TRANSACTIONAL_ID: 53,
}  # fmt: skip
LISTS = {16, 66}
"""APIs that leave out what the client may not see, and refuse nothing."""
SILENT = {(35, 1)}
"""Versions whose responses have no field for an error: they are empty, as Kafka's."""
OLDEST = {12: 1, 13: 1}
"""The responses of v0 are too short for the decoder of requests, which the tests' client uses."""
DECIDED_BY_ITS_STATE = {69}
"""An API that needs a right on topics that neither request nor response name; see test_access.py."""


@dataclass(frozen=True)
class Row:
    """A request of one API that needs a right, beside others. alternatives: each of which is enough."""

    api_key: int
    version: int
    alternatives: tuple[Access, ...]
    creates: bool

    def __str__(self) -> str:
        return f"{self.api_key} v{self.version} {' or '.join(map(str, self.alternatives))}"


def rows() -> Iterator[Row]:
    for key, api in SERVED_APIS.items():
        for version in sorted({OLDEST.get(key, api.min_version), api.max_version}):
            for need in api.needs:
                row = Row(key, version, alternatives(need), isinstance(need, AnyOf) and need.to_create)
                if exists(row):
                    yield row


def alternatives(need: Access | AnyOf) -> tuple[Access, ...]:
    return need.alternatives if isinstance(need, AnyOf) else (need,)


def exists(row: Row) -> bool:
    """Return whether this version can need the right."""
    given = row.alternatives[-1].given
    schema = load_request_schema(row.api_key, row.version)
    return given is None or 0 in given[1] or any(has(schema, path) for path in given[0])


def has(schema: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    declared = next((without_none(each.type) for each in fields(schema) if each.name == name), None)
    if declared is None or not rest:
        return declared is not None
    return has(without_none(get_args(declared)[0]) if get_origin(declared) is tuple else declared, rest)


ROWS = [row for row in rows() if not (row.api_key in DECIDED_BY_ITS_STATE and not row.alternatives[-1].named_by)]


class Sample:
    """The values of a request that names one resource of each type, and needs the right of a row."""

    def __init__(self, row: Row, topic_id: UUID) -> None:
        self._topic_id = topic_id
        self._named: dict[str, Any] = {}
        self._null: set[str] = set()
        for need in SERVED_APIS[row.api_key].needs:
            for access in alternatives(need):
                self._named |= dict.fromkeys(access.named_by, NAMES[access.resource_type])
        self._named |= {"acks": -1, "replica_id": -1, "replica_state.replica_id": -1}
        needed = row.alternatives[-1]
        if row.creates:
            self._named |= dict.fromkeys(needed.named_by, "new")
        if needed.given is not None:
            self._named |= dict.fromkeys(
                needed.given[0], next(number for number in range(64) if number in needed.given[1])
            )
        if needed.unless is not None:
            self._null.add(needed.unless)
        self.values = self._entity(load_request_schema(row.api_key, row.version), "")

    def _entity(self, schema: Any, prefix: str) -> dict[str, Any]:
        names = {each.name for each in fields(schema)}
        by_name = names if {"name", "topic_id"} <= names else set()
        return {
            each.name: None if each.name == "topic_id" and by_name else self._value(each.type, prefix + each.name)
            for each in fields(schema)
        }

    def _value(self, declared: Any, path: str) -> Any:
        kind = without_none(declared)
        if path in self._null:
            return None
        if get_origin(kind) is tuple:
            return [self._value(get_args(kind)[0], path)]
        if is_dataclass(kind):
            return None if path == "cursor" else self._entity(kind, f"{path}.")
        if kind is UUID:
            return self._topic_id if path in self._named else None
        if path in self._named:
            return self._named[path]
        if path.endswith(".records"):
            return BATCH
        return None if kind is not declared else blank(kind)


def blank(kind: type) -> Any:
    if issubclass(kind, bool):
        return True
    nothing = {str: "", bytes: b"", timedelta: 10_000}
    return next((value for of, value in nothing.items() if issubclass(kind, of)), 0)


def codes(answer: Any) -> set[int]:
    """Return all error codes in a response."""
    if isinstance(answer, tuple):
        return set().union(*map(codes, answer))
    if not is_dataclass(answer):
        return set()
    found = {int(getattr(answer, each.name)) for each in fields(answer) if each.name.endswith("error_code")}
    return found.union(*(codes(getattr(answer, each.name)) for each in fields(answer)))


def acl(resource_type: ResourceType, operation: AclOperation, permission: Permission) -> Acl:
    name = CLUSTER_NAME if resource_type is ResourceType.CLUSTER else ANY
    return Acl(resource_type, name, PatternType.LITERAL, str(ALICE), ANY, operation, permission)


EVERYTHING = [acl(resource_type, AclOperation.ALL, Permission.ALLOW) for resource_type in NAMES]


class World:
    """A broker with a topic, a group and a transactional id, and clients of it."""

    def __init__(self, broker: BrokerNode) -> None:
        self._broker = broker

    async def ask(self, row: Row, principal: Principal) -> Any:
        """Send the request of a row; return its response."""
        client = MemoryClient(self._broker)
        client.connection.authenticated(principal)
        topic_id = self._broker.metadata.image.topics["t"].topic_id
        client.send(request(row.api_key, row.version, **Sample(row, topic_id).values))
        frame = await client.answers.get()
        assert not client.failures
        return response(row.api_key, row.version, frame)

    async def permit(self, *acls: Acl) -> None:
        await self._broker.clients.access.add(CALLER, acls)

    def state(self) -> Mapping[str, Any]:
        """Return what requests may change."""
        ends = {str(each.identity): each.log.log_end_offset for each in self._broker.partitions.table}
        return {"seq": self._broker.metadata.image.seq, **ends}


@pytest.fixture
async def world(storage: Storage) -> AsyncIterator[World]:
    async with running_parts(SETTINGS, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.coordinators.groups.find_coordinator(CALLER, "g")
        await broker.coordinators.transactions.find_coordinator(CALLER, "x")
        yield World(broker)


@pytest.mark.parametrize("principal", [ANONYMOUS, BOB], ids=["nobody", "wrong identity"])
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_who_has_no_rights_is_refused(world: World, row: Row, principal: Principal) -> None:
    await world.permit(*EVERYTHING)
    before = world.state()
    answer = await world.ask(row, principal)
    if row.api_key in LISTS or (row.api_key, row.version) in SILENT:
        assert codes(answer) <= {0}
    else:
        assert codes(answer) & {*CODES.values()}
    assert world.state() == before


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_who_lacks_one_right_is_refused(world: World, row: Row) -> None:
    denied = [acl(access.resource_type, access.operation, Permission.DENY) for access in row.alternatives]
    await world.permit(*EVERYTHING, *denied)
    before = world.state()
    answer = await world.ask(row, ALICE)
    lacking = row.alternatives[-1]
    if not lacking.named_by and lacking.listed_by:
        assert codes(answer) <= {0, 105}
    elif (row.api_key, row.version) not in SILENT:
        assert CODES[lacking.resource_type] in codes(answer), answer
    assert world.state() == before


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_who_has_all_rights_is_served(world: World, row: Row) -> None:
    await world.permit(*EVERYTHING)
    assert not codes(await world.ask(row, ALICE)) & {*CODES.values()}
