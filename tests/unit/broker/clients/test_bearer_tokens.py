"""The keys that sign tokens are read again when they change, and not as often as strangers would like."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.bearer_tokens import MAX_TOKEN_BYTES, BearerTokens, UnknownKey
from conveyor.broker.clients.key_refresh import ASKED_INTERVAL_MS
from conveyor.broker.clients.token_claims import TokenRefused
from conveyor.kernel.errors import SettingsError
from conveyor.testing import ManualClock
from tests.identity_provider import AUDIENCE, key_set, signing_key, token
from tests.unit.broker.clients.key_source import ONE, Source
from tests.unit.broker.markers.producers import until
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

HOUR_MS = 3_600_000
TWO = key_set(signing_key("ES256"), signing_key("ES256", "two"))


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock(storage: Storage) -> ManualClock:
    return storage.clock


@pytest.fixture
async def broker(source: Source, storage: Storage) -> AsyncIterator[BrokerNode]:
    settings = {"sasl.jwks_url": "https://id.example/keys", "sasl.oauth_audience": AUDIENCE, "sasl.oauth_issuer": "*"}
    async with running_parts(settings, storage, key_source=source) as made:
        yield made


@pytest.fixture
async def tokens(broker: BrokerNode, source: Source) -> BearerTokens:
    await broker.clients.tokens.start()
    await until(lambda: broker.clients.tokens.keys is not None)
    return broker.clients.tokens


def of(kid: str) -> str:
    return token(NOW_MS, "ES256", kid)


async def refused(tokens: BearerTokens, kid: str) -> None:
    with pytest.raises(UnknownKey):
        await tokens.verify(of(kid))


async def test_user_of_a_token(tokens: BearerTokens) -> None:
    assert (await tokens.verify(of("one"))).user == "alice"


async def test_changed_keys_are_read_each_hour(tokens: BearerTokens, source: Source, clock: ManualClock) -> None:
    before = tokens.keys
    clock.advance(ms=HOUR_MS)
    await until(lambda: source.reads == 2)
    await asyncio.sleep(0)
    assert tokens.keys is before, "the same document is not read twice"
    source.document = TWO
    clock.advance(ms=HOUR_MS)
    await until(lambda: tokens.keys is not before)
    source.document = ONE
    clock.advance(ms=HOUR_MS)
    await until(lambda: source.reads == 4)


async def test_unknown_key_is_asked_for(tokens: BearerTokens, source: Source, clock: ManualClock) -> None:
    source.document = TWO
    clock.advance(ms=ASKED_INTERVAL_MS)
    signed = token(NOW_MS + ASKED_INTERVAL_MS, "ES256", "two")
    assert (await tokens.verify(signed)).user == "alice"
    assert source.reads == 2


async def test_many_unknown_keys_are_asked_for_once_in_ten_seconds(
    tokens: BearerTokens, source: Source, clock: ManualClock
) -> None:
    for number in range(100):
        await refused(tokens, f"key-{number}")
    assert source.reads == 1, "it was just read"
    clock.advance(ms=ASKED_INTERVAL_MS)
    source.goes_on.clear()
    waiting = [asyncio.ensure_future(refused(tokens, f"key-{number}")) for number in range(10)]
    await until(lambda: source.reads == 2)
    waiting += [asyncio.ensure_future(refused(tokens, f"key-{number}")) for number in range(10, 20)]
    source.goes_on.set()
    await asyncio.gather(*waiting)
    for number in range(100):
        await refused(tokens, f"key-{number}")
    assert source.reads == 2
    clock.advance(ms=ASKED_INTERVAL_MS - 1)
    await refused(tokens, "key-1")
    assert source.reads == 2


async def test_client_that_leaves_does_not_stop_the_others(
    tokens: BearerTokens, source: Source, clock: ManualClock
) -> None:
    clock.advance(ms=ASKED_INTERVAL_MS)
    source.document = TWO
    source.goes_on.clear()
    leaves, stays = (asyncio.ensure_future(tokens.verify(of("two"))) for _ in range(2))
    await until(lambda: source.reads == 2)
    leaves.cancel()
    source.goes_on.set()
    assert (await stays).user == "alice"


async def test_keys_that_cannot_be_read_stay_in_force(
    tokens: BearerTokens, source: Source, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for failure in (OSError("no route"), b"{}", b"nonsense"):
        source.document = failure
        reads = source.reads
        clock.advance(ms=HOUR_MS)
        await until(lambda reads=reads: source.reads > reads)  # type: ignore[misc]
        assert (await tokens.verify(token(clock.now_ms(), "ES256"))).user == "alice"
    assert len([each for each in caplog.messages if "those from before stay" in each]) == 1


async def test_failures_are_tried_again_soon(broker: BrokerNode, source: Source, clock: ManualClock) -> None:
    source.document = OSError("no route")
    await broker.clients.tokens.start()
    await until(lambda: source.reads == 1)
    for reads, pause_ms in enumerate((100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000), 2):
        await asyncio.sleep(0)
        clock.advance(ms=pause_ms - 1)
        await asyncio.sleep(0)
        assert source.reads == reads - 1
        clock.advance(ms=1)
        await until(lambda reads=reads: source.reads == reads)  # type: ignore[misc]
    with pytest.raises(UnknownKey, match="have not been read yet"):
        await broker.clients.tokens.verify(of("one"))
    source.document = ONE
    await asyncio.sleep(0)
    clock.advance(ms=10_000)
    await until(lambda: broker.clients.tokens.keys is not None)


async def test_first_client_waits_for_the_keys(broker: BrokerNode, source: Source) -> None:
    source.goes_on.clear()
    await broker.clients.tokens.start()
    waiting = asyncio.ensure_future(broker.clients.tokens.verify(of("one")))
    await until(lambda: source.reads == 1)
    assert not waiting.done()
    source.goes_on.set()
    assert (await waiting).user == "alice"


async def test_large_tokens_are_not_looked_at(tokens: BearerTokens) -> None:
    for size in (MAX_TOKEN_BYTES + 1, 1 << 20):
        with pytest.raises(TokenRefused, match=f"a token of {size} bytes"):
            await tokens.verify("a" * size)
    with pytest.raises(TokenRefused, match="malformed"):
        await tokens.verify("a" * MAX_TOKEN_BYTES)


async def test_broker_does_not_start_with_a_file_that_has_no_keys(storage: Storage) -> None:
    settings = {"sasl.jwks_file": "keys.json", "sasl.oauth_audience": AUDIENCE, "sasl.oauth_issuer": "*"}
    for content, reason in ((json.dumps({"keys": []}).encode(), "none of its 0 keys"), (OSError("gone"), "gone")):
        async with running_parts(settings, key_source=Source(content)) as broker:
            with pytest.raises(SettingsError, match=f"the keys of tokens .* cannot be used: .*{reason}"):
                await broker.clients.tokens.start()


async def test_changed_file_is_loaded_after_two_seconds(storage: Storage, clock: ManualClock, source: Source) -> None:
    settings = {"sasl.jwks_file": "keys.json", "sasl.oauth_audience": AUDIENCE, "sasl.oauth_issuer": "*"}
    async with running_parts(settings, storage, key_source=source) as broker:
        tokens = broker.clients.tokens
        await tokens.start()
        await until(lambda: source.reads == 2)
        await refused(tokens, "two")
        source.document, before = TWO, tokens.keys
        clock.advance(ms=2_000)
        await until(lambda: tokens.keys is not before)
        assert (await tokens.verify(of("two"))).user == "alice"


async def test_brokers_without_keys_take_no_tokens() -> None:
    async with running_parts() as broker:
        await broker.clients.tokens.start()
        assert not broker.clients.tokens.are_accepted
