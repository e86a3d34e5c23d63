"""Users who log in by SCRAM or PLAIN, and ask, read and write, and an operator who adds and removes them and changes
their passwords and rights.
"""

import asyncio
import hashlib
import hmac
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from conveyor.kafka_api.wire.codec import Body
from conveyor.kernel.access.acl import ANY, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.declared_access import DESCRIBE, READ, WRITE
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.record import encode_batch
from simulation.clients.users.audit_promise import AuditPromise
from simulation.clients.users.rest_users import GROUP_ACL, RestUser, rest_users
from simulation.clients.users.user_credentials import MECHANISM, PASSWORDS, USERS, secret
from simulation.clients.users.user_promises import Known, LoginWatch, Right, ServiceWatch
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.broker_doors import USERS_PORT
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_link import KafkaLink
from simulation.doors.kafka_requests import fetch_body, produce_body
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step
from simulation.troubles import GUARDED_TOPIC

_PRODUCE, _FETCH, _HANDSHAKE, _METADATA, _AUTHENTICATE, _ALTER = 0, 1, 17, 3, 36, 51
_ACL_APIS = {"add_acl": (30, 3, "creations", ""), "remove_acl": (31, 3, "filters", "_filter")}
"""The API, its version, its array, and the end of the names of fields that name a resource or a client."""
_TOPIC_REFUSED = 29
_TIMEOUT_S = 10.0
_WAIT_MS = 1_000
_ACLS = [
    Acl(ResourceType.TOPIC, name, pattern, f"User:{user}", ANY, operation, permission)
    for operation in (READ, WRITE, DESCRIBE)
    for permission, user, name, pattern in (
        (Permission.ALLOW, "alice", GUARDED_TOPIC, PatternType.LITERAL),
        (Permission.ALLOW, "bob", GUARDED_TOPIC[:3], PatternType.PREFIXED),
        (Permission.ALLOW, ANY, GUARDED_TOPIC, PatternType.LITERAL),
        (Permission.DENY, "alice", GUARDED_TOPIC[:5], PatternType.PREFIXED),
    )
]
"""The ACLs that the operator adds and removes."""


class UserAdmin:
    """See the module's docstring. A change without a reply may have happened or not."""

    async def execute(self, step: Step, door: ClientDoor) -> None:
        if step.action in _ACL_APIS:
            return await self._change_acl(step, door)
        if step.action == "write":
            return await self._write(door)
        user, number = USERS[step.number % 2], MECHANISM.number
        changes: dict[str, list[dict[str, object]]] = {"deletions": [], "upsertions": []}
        if step.action == "remove_user":
            changes["deletions"] = [{"name": user, "mechanism": number}]
        else:
            salted, credential = secret(user, PASSWORDS[step.number // 2 % 2])
            upsertion = {"name": user, "mechanism": number, "iterations": credential.iterations}
            changes["upsertions"] = [upsertion | {"salt": credential.salt, "salted_password": salted}]
        with suppress(Disconnected):
            await door.any().kafka(_ALTER, 0, changes)

    async def _write(self, door: ClientDoor) -> None:
        """Write a record that waiting users may read."""
        body = produce_body(GUARDED_TOPIC, 0, encode_batch([(0, None, b"admin", [])]), acks=1)
        with suppress(Disconnected):
            await (await door.leader((GUARDED_TOPIC, 0))).kafka(_PRODUCE, 9, body)

    async def _change_acl(self, step: Step, door: ClientDoor) -> None:
        acl = _ACLS[step.number % len(_ACLS)]
        api_key, version, entries, suffix = _ACL_APIS[step.action]
        with suppress(Disconnected):
            await door.any().kafka(api_key, version, {entries: [_acl_fields(acl, suffix)]})


class UserClient:
    """Logs in with one of the passwords, and asks on the connection for as long as that stays open."""

    def __init__(self, name: str, cluster: SimulatedCluster, audit: AuditPromise, counts: FaultCounts) -> None:
        self._name = name
        self._cluster = cluster
        self._audit = audit
        self._counts = counts
        self._logins = self._offset = 0
        self._link: tuple[KafkaLink, Known] | None = None

    async def execute(self, step: Step, _: ClientDoor) -> None:
        with suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                if step.action == "log_in" or self._link is None or not self._link[0].is_open:
                    await self._log_in(step.number)
                if self._link is not None:
                    await self._actions.get(step.action, self._ask)(*self._link)

    async def _ask(self, link: KafkaLink, known: Known) -> None:
        topic = {"name": GUARDED_TOPIC, "topic_id": None}
        asked = {"topics": [topic], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        watch = ServiceWatch(known, _right(known, DESCRIBE), _topic_error, lambda answer: not _topic_error(answer))
        self._note(watch, _topic_error(await link.kafka(_METADATA, 12, asked, watch)))

    async def _write(self, link: KafkaLink, known: Known) -> None:
        batch = encode_batch([(0, None, known.user.encode(), [])])
        watch = ServiceWatch(known, _right(known, WRITE), _write_error)
        answer = await link.kafka(_PRODUCE, 9, produce_body(GUARDED_TOPIC, 0, batch, acks=1), watch)
        self._note(watch, _write_error(answer))

    async def _read(self, link: KafkaLink, known: Known) -> None:
        """Wait for a record after the last one."""
        body = fetch_body((GUARDED_TOPIC, 0), self._offset, wait_ms=_WAIT_MS)
        watch = ServiceWatch(known, _right(known, READ), _read_error, lambda answer: bool(_read(answer).records))
        answer = await link.kafka(_FETCH, 12, body, watch)
        self._offset = max(0, _read(answer).high_watermark)
        self._note(watch, _read_error(answer))

    def _note(self, watch: ServiceWatch, error_code: int) -> None:
        is_refused = error_code == _TOPIC_REFUSED
        self._counts.note("user refused" if is_refused else "user served")
        if is_refused:
            self._audit.refused(watch.answered_by, watch.right)

    @property
    def _actions(self) -> Mapping[str, Callable[[KafkaLink, Known], Awaitable[None]]]:
        return {"read": self._read, "write": self._write}

    async def _log_in(self, number: int) -> None:
        if self._link is not None:
            self._link[0].close()
        self._link = None
        self._logins += 1
        brokers = list(self._cluster.brokers.values())
        broker, user = brokers[number % len(brokers)], USERS[number // 8 % 2]
        password, is_plain = PASSWORDS[number // 16 % 2], number // 32 % 2 == 0
        link = await self._connect(broker)
        mechanism = "PLAIN" if is_plain else str(MECHANISM)
        await link.kafka(_HANDSHAKE, 1, {"mechanism": mechanism})
        known = Known(broker, user, MECHANISM, secret(user, password)[1])
        watch = LoginWatch(known)
        if is_plain:
            response = await _authenticate(link, f"\0{user}\0{password}", watch)
        else:
            response = await self._prove(link, user, password, watch)
        if response.error_code == 0:
            self._link = link, known
            self._counts.note("user logged in")

    async def _connect(self, broker: SimulatedBroker) -> KafkaLink:
        return await self._cluster.clients.network.connect(
            lambda: KafkaLink(self._name, broker.bugs.append), broker.host, USERS_PORT
        )

    async def _prove(self, link: KafkaLink, user: str, password: str, watch: LoginWatch) -> Any:
        first = f"n={user},r={self._name}.{self._logins}"
        challenge = await _authenticate(link, f"n,,{first}", watch)
        if challenge.error_code:
            return challenge
        asked = challenge.auth_bytes.decode()
        nonce = asked.removeprefix("r=").partition(",")[0]
        final = f"c={b64encode(b'n,,').decode()},r={nonce}"
        proof = _proof(secret(user, password)[0], f"{first},{asked},{final}".encode())
        return await _authenticate(link, f"{final},p={b64encode(proof).decode()}", watch)


def user_clients(
    cluster: SimulatedCluster, audit: AuditPromise, counts: FaultCounts
) -> "dict[str, UserAdmin | UserClient | RestUser]":
    """Return the operator and the clients, by the names of their actors."""
    names = [f"user-{number}" for number in (1, 2, 3)]
    clients = {name: UserClient(name, cluster, audit, counts) for name in names}
    return {"user-admin": UserAdmin(), **clients, **rest_users(cluster, audit, counts)}


async def permit_group(door: ClientDoor) -> None:
    """Let all users read the subscription that REST users lease from. Raises Disconnected, RequestError."""
    api_key, version, entries, suffix = _ACL_APIS["add_acl"]
    answer = await door.any().kafka(api_key, version, {entries: [_acl_fields(GROUP_ACL, suffix)]})
    if answer.results[0].error_code:
        raise RequestError(ErrorKind.METADATA_UNAVAILABLE, answer.results[0].error_message)


def _acl_fields(acl: Acl, suffix: str) -> Body:
    """Return the fields of an ACL. suffix: of the names of fields that name a resource or a client."""
    return {
        f"resource_type{suffix}": acl.resource_type.number, f"resource_name{suffix}": acl.name,
        f"{'resource_' if not suffix else ''}pattern_type{suffix}": acl.pattern.number,
        f"principal{suffix}": acl.principal, f"host{suffix}": acl.host,
        "operation": acl.operation.number, "permission_type": acl.permission.number,
    }  # fmt: skip


def _right(known: Known, operation: AclOperation) -> Right:
    return Right(known.user, operation, GUARDED_TOPIC)


def _topic_error(answer: Any) -> int:
    return int(answer.topics[0].error_code)


def _write_error(answer: Any) -> int:
    return int(answer.responses[0].partition_responses[0].error_code)


def _read(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def _read_error(answer: Any) -> int:
    return int(_read(answer).error_code)


async def _authenticate(link: KafkaLink, message: str, watch: LoginWatch) -> Any:
    return await link.kafka(_AUTHENTICATE, 2, {"auth_bytes": message.encode()}, watch)


def _proof(salted: bytes, message: bytes) -> bytes:
    """Return a client's proof of a salted password. Source: RFC 5802, section 3."""
    name = MECHANISM.hash_name
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    return bytes(ours ^ theirs for ours, theirs in zip(client_key, signature, strict=True))
