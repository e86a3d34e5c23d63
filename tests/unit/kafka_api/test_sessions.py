"""Sessions that end: by a token, or because clients have to log in again. Those who do go on, the others do not."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import credentials
from conveyor.broker.clients.token_claims import SKEW_MS
from conveyor.kafka_api.authentication import GRACE_MS, MAX_REQUEST_BYTES, MAX_SESSION_MS
from conveyor.kernel.errors import ProtocolViolation
from conveyor.testing import ManualClock
from conveyor.testing.broker_security import password_change
from tests.callers import CALLER
from tests.identity_provider import AUDIENCE, token
from tests.unit.broker.clients.key_source import Source
from tests.unit.broker.parts import NOW_MS, Storage, running_parts
from tests.unit.kafka_api.login_client import HANDSHAKE, LoginClient
from tests.unit.kafka_api.requests import API_VERSIONS, METADATA, request

REAUTH_MS = 60_000
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
ALICE = b"\0alice\0secret"
ASK = request(METADATA, 4, topics=(), allow_auto_topic_creation=False)


@pytest.fixture
def clock(storage: Storage) -> ManualClock:
    return storage.clock


@pytest.fixture
def max_reauth_ms() -> int:
    return 0


@pytest.fixture
async def broker(storage: Storage, max_reauth_ms: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerNode]:
    """Yield a broker with the users alice and bob, that takes tokens."""
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 0)
    settings = {
        "sasl.jwks_file": "keys",
        "sasl.oauth_audience": AUDIENCE,
        "sasl.oauth_issuer": "*",
        "sasl.max_reauth_ms": max_reauth_ms,
    }
    async with running_parts(settings, storage, key_source=Source()) as made:
        await made.clients.tokens.start()
        changes = [password_change(user, "secret", b"some salt") for user in ("alice", "bob")]
        await made.clients.credentials.alter(CALLER, changes)
        yield made


def bearer(clock: ManualClock, identity: str = "", **claims: Any) -> bytes:
    """Return the message of a client with a token for five minutes from now."""
    signed = token(clock.now_ms(), "ES256", **claims)
    return f"n,{f'a={identity}' if identity else ''},\1auth=Bearer {signed}\1\1".encode()


async def log_in(client: LoginClient, mechanism: str, message: bytes) -> int:
    """Log in, or again. Returns how long the session lasts, in milliseconds."""
    assert int((await client.handshake(mechanism)).error_code) == 0
    answer = await client.authenticate(message)
    assert (int(answer.error_code), answer.error_message, answer.auth_bytes) == (0, None, b"")
    lifetime: timedelta = answer.session_lifetime
    return round(lifetime.total_seconds() * 1000)


async def asks(client: LoginClient) -> bool:
    """Ask for something. Returns whether it is answered; otherwise the session has expired."""
    try:
        client.send(ASK)
    except ProtocolViolation:
        return False
    assert await client.answers.get()
    return True


async def test_token_is_a_login_until_it_ends(broker: BrokerNode, clock: ManualClock) -> None:
    client = LoginClient(broker)
    lifetime_ms = await log_in(client, OAUTHBEARER, bearer(clock, "alice"))
    assert lifetime_ms == 300_000 + SKEW_MS
    assert client.users == ["User:alice"]
    clock.advance(ms=lifetime_ms - 1)
    assert await asks(client)
    clock.advance(ms=1)
    with pytest.raises(ProtocolViolation, match="the session has expired"):
        client.send(ASK)
    assert broker.clients.credentials.expired_sessions == 1


async def test_client_that_waits_on_after_its_session_is_disconnected(broker: BrokerNode, clock: ManualClock) -> None:
    client, other = LoginClient(broker), LoginClient(broker)
    for each in (client, other):
        await log_in(each, OAUTHBEARER, bearer(clock, "alice"))
    clock.advance(ms=300_000 + SKEW_MS)
    await log_in(other, OAUTHBEARER, bearer(clock, "alice"))
    clock.advance(ms=GRACE_MS)
    assert client.refused.is_set()
    assert not other.refused.is_set()


async def test_large_message_is_refused_unread(broker: BrokerNode, clock: ManualClock) -> None:
    """After the login, requests may be as large as those of any client."""
    client = LoginClient(broker)
    await log_in(client, OAUTHBEARER, bearer(clock, "alice"))
    await client.handshake(OAUTHBEARER)
    answer = await client.authenticate(b"n,,\1" + bytes(MAX_REQUEST_BYTES))
    assert int(answer.error_code) == 58
    await client.refused.wait()


@pytest.mark.parametrize(
    "claims", [{"sub": None}, {"exp": NOW_MS // 1000 - 60}, {"aud": "queues"}, {"kid": "other"}, {"exp": None}]
)
async def test_refused_token_is_told_and_then_fails(
    broker: BrokerNode, clock: ManualClock, claims: dict[str, Any]
) -> None:
    client = LoginClient(broker)
    await client.handshake(OAUTHBEARER)
    answer = await client.authenticate(bearer(clock, **claims))
    assert (int(answer.error_code), answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    with pytest.raises(ProtocolViolation, match="before the client has authenticated"):
        client.send(ASK)
    answer = await client.authenticate(b"\1")
    assert (int(answer.error_code), answer.error_message, answer.auth_bytes) == (
        58, "Authentication failed: invalid credentials", b"",
    )  # fmt: skip
    await client.refused.wait()
    assert not client.users
    assert broker.clients.credentials.refusals.count == 1
    with pytest.raises(ProtocolViolation):
        client.send(request(HANDSHAKE, 1, mechanism=OAUTHBEARER))


async def test_right_token_after_a_refused_one_is_too_late(broker: BrokerNode, clock: ManualClock) -> None:
    client = LoginClient(broker)
    await client.handshake(OAUTHBEARER)
    await client.authenticate(bearer(clock, sub=None))
    assert int((await client.authenticate(bearer(clock))).error_code) == 58
    assert not client.users


@pytest.mark.parametrize("message", [b"", b"n,,\1\1", b"\1", ALICE, b"n,,\1auth=Bearer " + b"t" * 30_000 + b"\1\1"])
async def test_malformed_message_fails_at_once(broker: BrokerNode, message: bytes) -> None:
    client = LoginClient(broker)
    await client.handshake(OAUTHBEARER)
    answer = await client.authenticate(message)
    assert (int(answer.error_code), answer.auth_bytes) == (58, b"")
    await client.refused.wait()


async def test_user_cannot_act_as_another_one(broker: BrokerNode, clock: ManualClock) -> None:
    client = LoginClient(broker)
    await client.handshake(OAUTHBEARER)
    assert int((await client.authenticate(bearer(clock, "bob"))).error_code) == 58
    assert not client.users


async def test_client_with_a_new_token_goes_on(broker: BrokerNode, clock: ManualClock) -> None:
    client = LoginClient(broker)
    await log_in(client, OAUTHBEARER, bearer(clock))
    for _ in range(3):
        clock.advance(ms=250_000)
        assert await log_in(client, OAUTHBEARER, bearer(clock)) == 300_000 + SKEW_MS
        assert await asks(client)
    clock.advance(ms=300_000 + SKEW_MS)
    assert await log_in(client, OAUTHBEARER, bearer(clock)), "also after the end, before anything else"
    assert await asks(client)
    assert broker.clients.credentials.expired_sessions == 0


async def test_session_of_a_long_token_ends(broker: BrokerNode, clock: ManualClock) -> None:
    assert await log_in(LoginClient(broker), OAUTHBEARER, bearer(clock, exp=1e12)) == MAX_SESSION_MS


async def test_sessions_without_a_limit_go_on(broker: BrokerNode, clock: ManualClock) -> None:
    client = LoginClient(broker)
    assert await log_in(client, PLAIN, ALICE) == 0
    clock.advance(ms=MAX_SESSION_MS)
    assert await asks(client)


class TestSessionsWithALimit:
    """Clients of all mechanisms have to log in again."""

    @pytest.fixture
    def max_reauth_ms(self) -> int:
        return REAUTH_MS

    async def test_shorter_time_counts(self, broker: BrokerNode, clock: ManualClock) -> None:
        assert await log_in(LoginClient(broker), OAUTHBEARER, bearer(clock)) == REAUTH_MS
        short = bearer(clock, exp=clock.now_ms() // 1000 + 10)
        assert await log_in(LoginClient(broker), OAUTHBEARER, short) == 10_000 + SKEW_MS

    async def test_client_goes_on_if_it_logs_in_again(self, broker: BrokerNode, clock: ManualClock) -> None:
        client = LoginClient(broker)
        for _ in range(3):
            assert await log_in(client, PLAIN, ALICE) == REAUTH_MS
            clock.advance(ms=REAUTH_MS - 1)
            assert await asks(client)
        assert set(client.users) == {"User:alice"}
        clock.advance(ms=1)
        assert not await asks(client)

    async def test_requests_go_on_between_the_messages(self, broker: BrokerNode, clock: ManualClock) -> None:
        client = LoginClient(broker)
        await log_in(client, PLAIN, ALICE)
        await client.handshake(PLAIN)
        assert await asks(client)
        assert int((await client.authenticate(ALICE)).error_code) == 0
        assert await asks(client)

    async def test_only_a_login_is_answered_after_the_end(self, broker: BrokerNode, clock: ManualClock) -> None:
        client = LoginClient(broker)
        await log_in(client, PLAIN, ALICE)
        clock.advance(ms=REAUTH_MS)
        assert int((await client.ask(API_VERSIONS, 0)).error_code) == 0
        await client.handshake(PLAIN)
        assert not await asks(client)
        assert int((await client.authenticate(ALICE)).error_code) == 0
        assert await asks(client)

    async def test_old_clients_are_held_to_it_too(self, broker: BrokerNode, clock: ManualClock) -> None:
        """They are not told: version 0 has no field for it."""
        client = LoginClient(broker)
        await client.handshake(PLAIN)
        assert int((await client.authenticate(ALICE, version=0)).error_code) == 0
        clock.advance(ms=REAUTH_MS)
        assert not await asks(client)

    async def test_many_requests_after_the_end_are_refused(self, broker: BrokerNode, clock: ManualClock) -> None:
        client = LoginClient(broker)
        await log_in(client, PLAIN, ALICE)
        clock.advance(ms=REAUTH_MS)
        for _ in range(16):
            await client.ask(API_VERSIONS, 0)
        with pytest.raises(ProtocolViolation, match="too many requests"):
            client.send(request(API_VERSIONS, 0))

    @pytest.mark.parametrize("message", [b"\0bob\0secret", b"\0alice\0wrong"])
    async def test_nobody_else_takes_over(self, broker: BrokerNode, clock: ManualClock, message: bytes) -> None:
        client = LoginClient(broker)
        await log_in(client, PLAIN, ALICE)
        await client.handshake(PLAIN)
        assert int((await client.authenticate(message)).error_code) == 58
        await client.refused.wait()
        assert client.users == ["User:alice"]
        clock.advance(ms=REAUTH_MS)
        for another in (ASK, request(HANDSHAKE, 1, mechanism=PLAIN)):
            with pytest.raises(ProtocolViolation):
                client.send(another)

    async def test_token_of_another_user_does_not_take_over(self, broker: BrokerNode, clock: ManualClock) -> None:
        client = LoginClient(broker)
        await log_in(client, OAUTHBEARER, bearer(clock))
        await client.handshake(OAUTHBEARER)
        assert int((await client.authenticate(bearer(clock, sub="bob"))).error_code) == 58
        assert client.users == ["User:alice"]

    @pytest.mark.parametrize("mechanism", [OAUTHBEARER, "SCRAM-SHA-256"])
    async def test_mechanism_stays(self, broker: BrokerNode, mechanism: str) -> None:
        client = LoginClient(broker)
        await log_in(client, PLAIN, ALICE)
        assert int((await client.handshake(mechanism)).error_code) == 34
        await client.refused.wait()

    async def test_ended_connection_leaves_no_timer(self, broker: BrokerNode, clock: ManualClock) -> None:
        client = LoginClient(broker)
        await log_in(client, PLAIN, ALICE)
        client.connection.end()
        clock.advance(ms=REAUTH_MS)
        assert not client.connection._has_expired
