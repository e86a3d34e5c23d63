"""A right password is remembered until the credential changes; logins that wait are limited."""

import asyncio
from base64 import b64encode

import pytest
from msgspec.structs import replace

from conveyor.broker.clients import credentials as credentials_module
from conveyor.broker.clients.credentials import Credentials
from conveyor.cluster.users import CredentialChange
from conveyor.http.engine.http_request import Request
from conveyor.http_api.requests import logins
from conveyor.http_api.requests.logins import MAX_WAITING, Logins, TooManyLogins
from conveyor.testing.broker_security import password_change
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts

SALT = b"some salt"


def request(user: str, password: str) -> Request:
    header = b"Basic " + b64encode(f"{user}:{password}".encode())
    return Request("GET", b"/", {b"authorization": header}, is_http_11=True)


async def set_password(credentials: Credentials, user: str, password: str) -> None:
    await credentials.alter(CALLER, [password_change(user, password, SALT)])


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "_REFUSAL_PAUSE_S", 0)


async def test_right_password_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "_MAX_KNOWN", 2)
    async with running_parts() as broker:
        credentials = broker.clients.credentials
        users = Logins(broker.clients, broker.clock)
        for name in ("alice", "bob", "carol"):
            await set_password(credentials, name, "secret")
        alice = request("alice", "secret")
        assert users.known(alice) is None
        assert str(await users.check(alice, CALLER)) == str(users.known(alice)) == "User:alice"
        assert users.known(request("alice", "other")) is None
        await set_password(credentials, "alice", "secret")
        assert users.known(alice) is not None, "the credential is the same"
        await set_password(credentials, "alice", "other")
        assert users.known(alice) is None
        assert await users.check(alice, CALLER) is None
        for name in ("alice", "bob", "carol"):
            await users.check(request(name, "other" if name == "alice" else "secret"), CALLER)
        assert users.known(request("alice", "other")) is None, "the oldest is forgotten"
        assert users.known(request("carol", "secret")) is not None


async def test_password_that_changes_while_it_is_checked_is_not_remembered() -> None:
    async with running_parts() as broker:
        credentials = broker.clients.credentials
        users = Logins(broker.clients, broker.clock)
        await set_password(credentials, "alice", "secret")
        checking = asyncio.ensure_future(users.check(request("alice", "secret"), CALLER))
        await asyncio.sleep(0)
        await set_password(credentials, "alice", "other")
        await checking
        assert users.known(request("alice", "secret")) is None


async def test_removed_user_who_was_made_while_the_password_was_checked_is_not_remembered() -> None:
    async with running_parts() as broker:
        credentials = broker.clients.credentials
        users, alice = Logins(broker.clients, broker.clock), request("alice", "secret")
        checks = [asyncio.ensure_future(users.check(request("eve", "wrong"), CALLER)) for _ in range(5)]
        checks.append(asyncio.ensure_future(users.check(alice, CALLER)))
        await asyncio.sleep(0)
        await set_password(credentials, "alice", "secret")
        await asyncio.gather(*checks)
        assert users.known(alice) is not None
        await credentials.alter(CALLER, [CredentialChange("alice", 1)])
        assert users.known(alice) is None


async def test_logins_that_wait_are_limited() -> None:
    async with running_parts() as broker:
        users = Logins(broker.clients, broker.clock)
        waiting = [
            asyncio.ensure_future(users.check(request("eve", str(number)), CALLER)) for number in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyLogins):
            await users.check(request("alice", "secret"), CALLER)
        elsewhere = replace(CALLER, address="192.0.2.99")
        assert await users.check(request("alice", "secret"), elsewhere) is None
        assert await asyncio.gather(*waiting) == [None] * MAX_WAITING
        assert await users.check(request("alice", "secret"), CALLER) is None
