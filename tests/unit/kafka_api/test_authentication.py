"""A client proves who it is before it may ask for anything; who is refused learns nothing, and is disconnected."""

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import credentials
from conveyor.broker.clients.credentials import Credentials
from conveyor.broker.services import Services
from conveyor.cluster.users import CredentialChange, Upsertion
from conveyor.kafka_api.authentication import MAX_REQUEST_BYTES
from conveyor.kernel.access.scram import SALT_BYTES, ScramMechanism
from conveyor.kernel.errors import ProtocolViolation, RequestError
from conveyor.settings.sasl_settings import MECHANISMS
from conveyor.testing.broker_security import password_change
from tests.callers import CALLER
from tests.unit.broker.markers.producers import until
from tests.unit.broker.parts import running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.login_client import AUTHENTICATE, HANDSHAKE, LoginClient
from tests.unit.kafka_api.requests import API_VERSIONS, METADATA, request

DESCRIBE_SCRAM, ALTER_SCRAM = 50, 51
SALT = b"some salt"


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerNode]:
    """Yield a broker with the user alice, whose password is secret."""
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 0)
    async with running_parts() as made:
        change = password_change("alice", "secret", SALT)
        assert await made.clients.credentials.alter(CALLER, [change]) == {"alice": None}
        yield made


async def test_client_that_logs_in_may_ask(broker: BrokerNode) -> None:
    client = LoginClient(broker)
    assert (await client.ask(API_VERSIONS, 0)).error_code == 0
    answer = await client.handshake("PLAIN")
    assert (int(answer.error_code), answer.mechanisms) == (0, MECHANISMS)
    answer = await client.authenticate(b"\0alice\0secret")
    assert (int(answer.error_code), answer.error_message, answer.auth_bytes) == (0, None, b"")
    assert client.users == ["User:alice"]
    asked = await client.ask(METADATA, 4, topics=(), allow_auto_topic_creation=False)
    assert len(asked.brokers) == 1
    assert client.connection._origin.caller.principal.name == "alice"


@pytest.mark.parametrize(
    "message", [b"\0alice\0wrong", b"\0eve\0secret", b"\0bob\0secret", b"nonsense", b"bob\0alice\0secret"]
)
async def test_all_refusals_are_alike(broker: BrokerNode, message: bytes) -> None:
    client = LoginClient(broker)
    await client.handshake("PLAIN")
    answer = await client.authenticate(message)
    assert (int(answer.error_code), answer.error_message, answer.auth_bytes) == (
        58, "Authentication failed: invalid credentials", b"",
    )  # fmt: skip
    await client.refused.wait()
    assert client.users == []


async def test_unknown_users_are_asked_for_a_proof(broker: BrokerNode) -> None:
    answers = []
    for user in ("alice", "eve", "eve", "mallory"):
        client = LoginClient(broker)
        await client.handshake("SCRAM-SHA-256")
        answer = await client.authenticate(f"n,,n={user},r=nonce".encode())
        assert int(answer.error_code) == 0
        nonce, salt, iterations = answer.auth_bytes.decode().split(",")
        assert nonce.startswith("r=nonce")
        assert iterations == "i=4096"
        answers.append(salt)
        refused = await client.authenticate(f"c=biws,{nonce},p=AAAA".encode())
        assert int(refused.error_code) == 58
        await client.refused.wait()
    alice, eve, again, mallory = answers
    assert eve == again, "a salt that changes would tell that there is no such user"
    assert len({alice, eve, mallory}) == 3


async def test_decoys_are_the_same_on_all_brokers(broker: BrokerNode) -> None:
    """Their key is in the image, which a broker gets from the others, and reads again at its start."""
    decoy, is_known = broker.clients.credentials.scram(ScramMechanism.SHA_512, "eve")
    assert not is_known
    assert (len(decoy.salt), decoy.iterations) == (SALT_BYTES, 4096)
    other = SimpleNamespace(metadata=broker.metadata, clock=None, slices=broker.slices, threads=None, new_id=None)
    assert Credentials(cast("Services", other)).scram(ScramMechanism.SHA_512, "eve") == (decoy, False)


async def test_decoys_look_like_the_users_of_other_tools(broker: BrokerNode) -> None:
    """Their salts have other lengths, and they choose other iterations."""
    salts = {b"x" * 64: 9_000, b"y" * 16: 5_000}
    others = [CredentialChange(f"user{salt!r}", 1, Upsertion(i, salt, bytes(32))) for salt, i in salts.items()]
    await broker.clients.credentials.alter(CALLER, [*others, CredentialChange("alice", 1)])
    decoys = [broker.clients.credentials.scram(ScramMechanism.SHA_256, f"eve{number}")[0] for number in range(100)]
    assert {(len(decoy.salt), decoy.iterations) for decoy in decoys} == {(64, 9_000), (16, 5_000)}


async def test_client_that_leaves_is_not_checked(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a stranger could leave any number of passwords behind."""
    checked: list[str] = []
    goes_on = threading.Event()

    def check(_mechanism: object, _held: object, password: str) -> bool:
        checked.append(password)
        return not goes_on.wait(30)

    monkeypatch.setattr(credentials, "is_password", check)
    clients = [LoginClient(broker) for _ in range(5)]
    for number, client in enumerate(clients):
        await client.handshake("PLAIN")
        client.send(request(AUTHENTICATE, 2, auth_bytes=f"\0eve\0{number}".encode()))
    await until(lambda: checked == ["0"])
    for client in clients:
        client.connection.end()
    goes_on.set()
    assert not await broker.clients.credentials.is_password(CALLER, "eve", "last")
    assert checked == ["0", "last"]


async def test_refusal_ends_with_its_connection(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a stranger could leave any number of refusals behind, each of which waits."""
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 3_600)
    client = LoginClient(broker)
    client.send(request(AUTHENTICATE, 2, auth_bytes=bytes(60_000)))
    assert client.connection.buffered_bytes > 60_000
    await asyncio.sleep(0)
    client.connection.end()
    assert client.connection.buffered_bytes == 0
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "_refuse_later" in repr(task)]


async def test_refused_client_gets_no_second_attempt(broker: BrokerNode) -> None:
    client = LoginClient(broker)
    await client.handshake("PLAIN")
    await client.authenticate(b"\0alice\0wrong")
    with pytest.raises(ProtocolViolation, match="before the client has authenticated"):
        client.send(request(AUTHENTICATE, 2, auth_bytes=b"\0alice\0secret"))


async def test_many_changes_in_one_request_are_refused(broker: BrokerNode) -> None:
    upsertion = Upsertion(4096, SALT, bytes(32))
    changes = [CredentialChange(f"user{number}", 1, upsertion) for number in range(1_001)]
    with pytest.raises(RequestError, match="1001 changes of credentials: a request may have 1000"):
        await broker.clients.credentials.alter(CALLER, changes)
    assert set((await broker.clients.credentials.alter(CALLER, changes[1:])).values()) == {None}


async def test_mechanism_that_is_not_offered_is_refused(broker: BrokerNode) -> None:
    client = LoginClient(broker, ("SCRAM-SHA-512",))
    answer = await client.handshake("PLAIN")
    assert (int(answer.error_code), answer.mechanisms) == (33, ("SCRAM-SHA-512",))
    await client.refused.wait()


async def test_messages_out_of_order_are_refused(broker: BrokerNode) -> None:
    client = LoginClient(broker)
    assert int((await client.authenticate(b"\0alice\0secret")).error_code) == 34
    await client.refused.wait()
    client = LoginClient(broker)
    await client.handshake("PLAIN")
    assert int((await client.handshake("PLAIN")).error_code) == 34
    await client.refused.wait()


async def test_nothing_else_is_answered_before(broker: BrokerNode) -> None:
    for api_key in broker_apis() - {HANDSHAKE, API_VERSIONS, AUTHENTICATE}:
        client = LoginClient(broker)
        with pytest.raises(ProtocolViolation, match=f"api key {api_key} before the client has authenticated"):
            client.send(api_key.to_bytes(2, "big") + bytes(30))
    client = LoginClient(broker)
    with pytest.raises(ProtocolViolation, match="a request of 65537 bytes"):
        client.connection.receive((MAX_REQUEST_BYTES + 1).to_bytes(4, "big"))


def broker_apis() -> set[int]:
    from conveyor.kafka_api.registry import HANDLERS

    return set(HANDLERS)


async def test_requests_wait_until_the_client_is_known(broker: BrokerNode) -> None:
    """A client that does not wait for its login is served after it, as the user."""
    client = LoginClient(broker)
    client.send(
        request(HANDSHAKE, 1, mechanism="PLAIN"),
        request(AUTHENTICATE, 2, auth_bytes=b"\0alice\0secret"),
        request(METADATA, 4, topics=(), allow_auto_topic_creation=False),
    )
    assert len([await client.answers.get() for _ in range(3)]) == 3
    assert client.users == ["User:alice"]


async def test_large_requests_are_taken_after_the_login(broker: BrokerNode) -> None:
    client = LoginClient(broker)
    await client.handshake("PLAIN")
    await client.authenticate(b"\0alice\0secret")
    client.connection.receive((1 << 20).to_bytes(4, "big") + METADATA.to_bytes(2, "big"))
    assert not client.failures


async def test_sasl_is_for_its_listeners(broker: BrokerNode) -> None:
    plain = MemoryClient(broker)
    assert int((await plain.ask(HANDSHAKE, 1, mechanism="PLAIN")).error_code) == 34
    assert int((await plain.ask(AUTHENTICATE, 2, auth_bytes=b"\0alice\0secret")).error_code) == 34


async def test_users_are_described_and_changed(broker: BrokerNode) -> None:
    client = MemoryClient(broker)
    told: list[frozenset[str]] = []
    broker.clients.credentials.changed.listen(told.append)
    answer = await client.ask(DESCRIBE_SCRAM, 0, users=None)
    assert [
        (each.user, [(info.mechanism, info.iterations) for info in each.credential_infos]) for each in answer.results
    ] == [("alice", [(1, 4096)])]
    bob = {"name": "bob", "mechanism": 2, "iterations": 5000, "salt": SALT, "salted_password": bytes(64)}
    answer = await client.ask(
        ALTER_SCRAM, 0, deletions=[{"name": "alice", "mechanism": 1}, {"name": "eve", "mechanism": 1}], upsertions=[bob]
    )
    assert {each.user: int(each.error_code) for each in answer.results} == {"alice": 0, "eve": 91, "bob": 0}
    assert told == [{"alice"}]
    names = [{"name": "alice"}, {"name": "bob"}, {"name": "bob"}]
    answer = await client.ask(DESCRIBE_SCRAM, 0, users=names)
    assert {each.user: int(each.error_code) for each in answer.results} == {"alice": 91, "bob": 92}
    assert len((await client.ask(DESCRIBE_SCRAM, 0, users=())).results) == 1


async def test_password_that_is_changed_meanwhile_is_wrong(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    users, begun, goes_on = broker.clients.credentials, threading.Event(), threading.Event()
    assert await users.is_password(CALLER, "alice", "secret")

    def check(_mechanism: object, _held: object, _password: str) -> bool:
        begun.set()
        return goes_on.wait(30)

    monkeypatch.setattr(credentials, "is_password", check)
    checking = asyncio.ensure_future(users.is_password(CALLER, "alice", "secret"))
    await until(begun.is_set)
    await users.alter(CALLER, [CredentialChange("alice", 1)])
    goes_on.set()
    assert not await checking
