"""Users who log in by SCRAM or PLAIN and ask, and an operator who adds and removes them and changes their passwords."""

import asyncio
import hashlib
import hmac
from base64 import b64encode
from contextlib import suppress
from functools import cache
from typing import Any

from conveyor.kernel.access.scram import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from simulation.clients.users.user_promises import Known, LoginWatch, ServiceWatch
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.broker_doors import USERS_PORT
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_link import KafkaLink
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step

USERS, PASSWORDS = ("alice", "bob"), ("first", "second")
_MECHANISM = ScramMechanism.SHA_256
_HANDSHAKE, _METADATA, _AUTHENTICATE, _ALTER = 17, 3, 36, 51
_TIMEOUT_S = 10.0


class UserAdmin:
    """See the module's docstring. A change without a reply may have happened or not."""

    def __init__(self, counts: FaultCounts) -> None:
        self._counts = counts

    async def execute(self, step: Step, door: ClientDoor) -> None:
        self._counts.note(step.action)
        user, number = USERS[step.number % 2], _MECHANISM.number
        changes: dict[str, list[dict[str, object]]] = {"deletions": [], "upsertions": []}
        if step.action == "remove_user":
            changes["deletions"] = [{"name": user, "mechanism": number}]
        else:
            salted, credential = _secret(user, PASSWORDS[step.number // 2 % 2])
            upsertion = {"name": user, "mechanism": number, "iterations": credential.iterations}
            changes["upsertions"] = [upsertion | {"salt": credential.salt, "salted_password": salted}]
        with suppress(Disconnected):
            await door.any().kafka(_ALTER, 0, changes)


class UserClient:
    """Logs in with one of the passwords, and asks on the connection for as long as that stays open."""

    def __init__(self, name: str, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._name = name
        self._cluster = cluster
        self._counts = counts
        self._logins = 0
        self._link: tuple[KafkaLink, Known] | None = None

    async def execute(self, step: Step, _: ClientDoor) -> None:
        with suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                if step.action == "log_in" or self._link is None or not self._link[0].is_open:
                    await self._log_in(step.number)
                if self._link is not None:
                    await self._ask(*self._link)

    async def _ask(self, link: KafkaLink, known: Known) -> None:
        asked = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        await link.kafka(_METADATA, 12, asked, ServiceWatch(known))
        self._counts.note("user served")

    async def _log_in(self, number: int) -> None:
        if self._link is not None:
            self._link[0].close()
        self._link = None
        self._logins += 1
        brokers = list(self._cluster.brokers.values())
        broker, user = brokers[number % len(brokers)], USERS[number // 8 % 2]
        password, is_plain = PASSWORDS[number // 16 % 2], number // 32 % 2 == 0
        link = await self._connect(broker)
        mechanism = "PLAIN" if is_plain else str(_MECHANISM)
        await link.kafka(_HANDSHAKE, 1, {"mechanism": mechanism})
        known = Known(broker, user, _MECHANISM, _secret(user, password)[1])
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
        proof = _proof(_secret(user, password)[0], f"{first},{asked},{final}".encode())
        return await _authenticate(link, f"{final},p={b64encode(proof).decode()}", watch)


def user_clients(cluster: SimulatedCluster, counts: FaultCounts) -> "dict[str, UserAdmin | UserClient]":
    """Return the operator and the clients, by the names of their actors."""
    names = [f"user-{number}" for number in (1, 2, 3)]
    return {"user-admin": UserAdmin(counts)} | {name: UserClient(name, cluster, counts) for name in names}


async def _authenticate(link: KafkaLink, message: str, watch: LoginWatch) -> Any:
    return await link.kafka(_AUTHENTICATE, 2, {"auth_bytes": message.encode()}, watch)


@cache
def _secret(user: str, password: str) -> tuple[bytes, ScramCredential]:
    """Return the salted password that the operator sends, and the credential that it makes."""
    salt = f"salt of {user}".encode()
    salted = salted_password(_MECHANISM, password, salt, MIN_ITERATIONS)
    return salted, credential_of(_MECHANISM, salt, salted, MIN_ITERATIONS)


def _proof(salted: bytes, message: bytes) -> bytes:
    """Return a client's proof of a salted password. Source: RFC 5802, section 3."""
    name = _MECHANISM.hash_name
    client_key = hmac.digest(salted, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    return bytes(ours ^ theirs for ours, theirs in zip(client_key, signature, strict=True))
