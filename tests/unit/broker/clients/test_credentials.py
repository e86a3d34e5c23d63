"""The check of a password takes as much work whoever is asked for, and one address does not hold up the others."""

import hashlib
import threading
from base64 import b64encode
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import credentials
from conveyor.http.engine.http_request import Request
from conveyor.http_api.requests.logins import Logins
from conveyor.kernel.access import scram
from conveyor.kernel.access.scram import ScramMechanism
from conveyor.testing.broker_security import password_change
from tests.callers import CALLER
from tests.unit.broker.markers.producers import until
from tests.unit.broker.parts import running_parts
from tests.unit.kafka_api.login_client import AUTHENTICATE, LoginClient
from tests.unit.kafka_api.requests import request

SHA_256, SHA_512 = ScramMechanism
ADDRESS, ELSEWHERE = "client.example", "192.0.2.99"
"""The first is that of a `LoginClient`."""


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerNode]:
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 0)
    async with running_parts() as made:
        yield made


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The hash function and the iterations of all hashes of passwords, as they are made."""
    made: list[tuple[str, int]] = []

    class Counted:
        @staticmethod
        def pbkdf2_hmac(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
            made.append((name, iterations))
            return hashlib.pbkdf2_hmac(name, password, salt, iterations)

        new = staticmethod(hashlib.new)

    monkeypatch.setattr(scram, "hashlib", Counted)
    return made


def basic(user: str, password: str) -> Request:
    header = b"Basic " + b64encode(f"{user}:{password}".encode())
    return Request("GET", b"/", {b"authorization": header}, is_http_11=True)


async def log_in(broker: BrokerNode, door: str, user: str) -> None:
    """Be refused by a door."""
    if door == "Basic":
        assert await Logins(broker.clients, broker.clock).check(basic(user, "wrong"), CALLER) is None
        return
    client = LoginClient(broker)
    await client.handshake("PLAIN")
    assert int((await client.authenticate(f"\0{user}\0wrong".encode())).error_code) == 58
    await client.refused.wait()


@pytest.mark.parametrize("mechanisms", [(SHA_256,), (SHA_512,), (SHA_256, SHA_512)])
@pytest.mark.parametrize("door", ["PLAIN", "Basic"])
async def test_unknown_user_takes_as_many_hashes(
    broker: BrokerNode, hashes: list[tuple[str, int]], door: str, mechanisms: tuple[ScramMechanism, ...]
) -> None:
    """The users have another number of iterations than those of Conveyor."""
    changes = [password_change("alice", "secret", b"salt", mechanism, 10_000) for mechanism in mechanisms]
    assert await broker.clients.credentials.alter(CALLER, changes) == {"alice": None}
    hashes.clear()
    await log_in(broker, door, "alice")
    of_alice = hashes.copy()
    assert of_alice == [(mechanisms[0].hash_name, 10_000)]
    for number in range(20):
        hashes.clear()
        await log_in(broker, door, f"eve{number}")
        assert hashes == of_alice


async def test_doors_check_one_password_of_an_address_at_a_time(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one of another address waits for one of each address at most, however many passwords somebody tries."""
    checked: list[str] = []
    goes_on = threading.Semaphore(0)

    def check(_mechanism: object, _held: object, password: str) -> bool:
        checked.append(password)
        return not goes_on.acquire(timeout=30)

    monkeypatch.setattr(credentials, "is_password", check)
    logins, tasks = Logins(broker.clients, broker.clock), broker.tasks
    for number in range(5):
        client = LoginClient(broker)
        await client.handshake("PLAIN")
        client.send(request(AUTHENTICATE, 2, auth_bytes=f"\0eve\0plain{number}".encode()))
        here = replace(CALLER, address=ADDRESS)
        tasks.start(logins.check(basic("eve", f"basic{number}"), here))
    await until(lambda: len(checked) == 1)
    tasks.start(logins.check(basic("bob", "elsewhere"), replace(CALLER, address=ELSEWHERE)))
    while len(checked) < 11:
        count = len(checked)
        goes_on.release()
        await until(lambda: len(checked) > count)  # noqa: B023 - called at once
    goes_on.release()
    assert checked.index("elsewhere") <= 2
    assert len(set(checked)) == 11
    await until(lambda: not logins._waiting)
