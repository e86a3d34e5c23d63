"""Client quotas: rates over windows, stored quotas, and throttle times."""

import asyncio
from collections.abc import Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import quota_enforcement as module
from conveyor.broker.clients.quota_enforcement import Quotas, Rate
from conveyor.cluster.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Limit,
    QuotaChange,
    QuotaEntity,
    checked_entity,
)
from conveyor.kernel.errors import RequestError
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, THIS_BROKER, Storage, running_parts, stored_image, unloaded_metadata
from tests.unit.broker.room_services import room_services

APP: QuotaEntity = ((CLIENT_ID, "app"),)
EVERYBODY: QuotaEntity = ((CLIENT_ID, None),)


def test_a_burst_within_all_windows_is_within_the_rate() -> None:
    rate = Rate(11, 1000)
    rate.record(1000, NOW_MS)
    assert rate.excess_ms(100, NOW_MS) == 0
    rate.record(1, NOW_MS)
    assert rate.excess_ms(100, NOW_MS) == 10


def test_silence_for_the_excess_brings_a_rate_back_to_its_limit() -> None:
    rate = Rate(11, 1000)
    for second in range(11):
        rate.record(200, NOW_MS + second * 1000)
    now_ms = NOW_MS + 10_999
    excess_ms = rate.excess_ms(100, now_ms)
    assert excess_ms == 2200 * 10 - 10_999
    assert rate.excess_ms(100, now_ms + excess_ms) == 0


def test_windows_are_forgotten_when_their_last_record_is_old() -> None:
    rate = Rate(11, 1000)
    rate.record(5000, NOW_MS)
    rate.record(5000, NOW_MS + 500)
    assert rate.total(NOW_MS + 11_499) == 10_000
    assert rate.total(NOW_MS + 11_500) == 0
    assert rate.excess_ms(1, NOW_MS + 11_500) == 0


def test_a_clock_that_goes_back_breaks_no_rate() -> None:
    rate = Rate(11, 1000)
    rate.record(1001, NOW_MS)
    rate.record(0, NOW_MS - 3_600_000)
    assert 0 <= rate.excess_ms(100, NOW_MS - 3_600_000) <= 1000


def test_an_excess_has_an_end() -> None:
    rate = Rate(11, 1000)
    rate.record(1e300, NOW_MS)
    assert rate.excess_ms(1e-300, NOW_MS) == (1 << 31) - 1


def changes(**values: float | None) -> list[QuotaChange]:
    return [QuotaChange(key=key, value=value) for key, value in values.items()]


async def stored(storage: Storage) -> Quotas:
    """Return the quotas of a broker that starts on this storage."""
    metadata = unloaded_metadata(storage.store)
    quotas = Quotas(room_services(storage.clock, metadata=metadata))
    await metadata.load(THIS_BROKER)
    return quotas


def limited(quotas: Quotas, key: str, client_id: str = "app") -> Limit:
    limit = quotas.quotas.limit(key, CALLER.principal.name, client_id)
    assert limit is not None
    return limit


@pytest.fixture
async def quotas(storage: Storage) -> Quotas:
    """Quotas of every kind for all clients, 100 per second."""
    made = await stored(storage)
    assert not made.in_force
    rates = dict.fromkeys((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE), 100.0)
    await made.alter(CALLER, EVERYBODY, changes(**rates))
    return made


async def test_quotas_are_kept(storage: Storage, quotas: Quotas) -> None:
    await quotas.alter(CALLER, APP, changes(producer_byte_rate=5))
    again = await stored(storage)
    assert again.in_force
    assert again.quotas == quotas.quotas
    assert limited(again, PRODUCER_BYTE_RATE).per_second == 5


async def test_quotas_that_are_only_checked_stay_as_they_are(storage: Storage, quotas: Quotas) -> None:
    before = quotas.quotas
    await quotas.alter(CALLER, APP, changes(producer_byte_rate=5), check_only=True)
    with pytest.raises(RequestError):
        await quotas.alter(CALLER, APP, changes(producer_byte_rate=-5), check_only=True)
    assert quotas.quotas == before
    assert APP not in (await stored_image(storage)).quotas


async def test_removing_the_last_value_removes_the_entity(storage: Storage, quotas: Quotas) -> None:
    await quotas.alter(CALLER, APP, changes(producer_byte_rate=5))
    await quotas.alter(CALLER, APP, changes(producer_byte_rate=None))
    await quotas.alter(
        CALLER, EVERYBODY, changes(producer_byte_rate=None, consumer_byte_rate=None, request_percentage=None)
    )
    assert not quotas.in_force
    assert (await stored_image(storage)).quotas == {}


async def test_a_change_by_another_broker_is_not_overwritten(storage: Storage, quotas: Quotas) -> None:
    other = await stored(storage)
    await other.alter(CALLER, APP, changes(producer_byte_rate=5))
    await quotas.alter(CALLER, APP, changes(consumer_byte_rate=6))
    assert quotas.quotas.entities[APP] == {PRODUCER_BYTE_RATE: 5, CONSUMER_BYTE_RATE: 6}


async def test_a_change_that_comes_in_between_is_decided_on_again(storage: Storage, quotas: Quotas) -> None:
    other = await stored(storage)
    await asyncio.gather(
        quotas.alter(CALLER, APP, changes(producer_byte_rate=5)),
        other.alter(CALLER, APP, changes(consumer_byte_rate=6)),
    )
    await quotas.alter(CALLER, EVERYBODY, changes(producer_byte_rate=7))
    assert quotas.quotas.entities[APP] == {PRODUCER_BYTE_RATE: 5, CONSUMER_BYTE_RATE: 6}


@pytest.mark.parametrize("name", ["a/b", "a=b,user", "ä ö", "..", "%2F", '"]}, {"', "\x00"])
async def test_quotas_are_kept_for_any_name(storage: Storage, quotas: Quotas, name: str) -> None:
    await quotas.alter(CALLER, checked_entity([(CLIENT_ID, name), (USER, None)]), changes(producer_byte_rate=0.5e9))
    assert (await stored(storage)).quotas == quotas.quotas


async def test_clients_do_not_share_the_rate_of_the_default(quotas: Quotas) -> None:
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE, "app"), 2000, NOW_MS) == 10_000
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE, "web"), 1000, NOW_MS) == 0
    assert quotas.throttled[PRODUCER_BYTE_RATE] == 1


async def test_clients_of_a_user_share_one_rate(quotas: Quotas) -> None:
    await quotas.alter(CALLER, ((USER, None),), changes(producer_byte_rate=100))
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE, "app"), 1000, NOW_MS) == 0
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE, "web"), 1000, NOW_MS) == 10_000


async def test_what_was_counted_holds_for_a_new_limit(quotas: Quotas) -> None:
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE), 1000, NOW_MS) == 0
    await quotas.alter(CALLER, APP, changes(producer_byte_rate=50))
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE), 0, NOW_MS) == 10_000


async def test_what_does_not_fit_is_not_counted(quotas: Quotas) -> None:
    limit = limited(quotas, CONSUMER_BYTE_RATE)
    assert quotas.record_within(limit, 1000, NOW_MS) == 0
    assert quotas.record_within(limit, 500, NOW_MS) == quotas.record_within(limit, 500, NOW_MS) == 5_000


async def test_whoever_had_nothing_gets_it_however_large(quotas: Quotas) -> None:
    limit = limited(quotas, CONSUMER_BYTE_RATE)
    assert quotas.window_amount(limit) == 1000
    assert quotas.record_within(limit, 1_000_000, NOW_MS) == 0
    assert quotas.record_within(limit, 1, NOW_MS) > 0
    assert quotas.record_within(limit, 1_000_000, NOW_MS + 11_000) == 0


async def test_rates_are_not_more_than_there_is_room_for(quotas: Quotas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RATES", 2)
    for client_id in ("app", "web", "app", "new"):
        quotas.record(limited(quotas, PRODUCER_BYTE_RATE, client_id), 1000, NOW_MS)
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE, "app"), 0, NOW_MS) > 0
    assert quotas.record(limited(quotas, PRODUCER_BYTE_RATE, "web"), 0, NOW_MS) == 0


async def test_connections_from_an_address_are_counted_while_they_are_admitted(storage: Storage) -> None:
    quotas = await stored(storage)
    assert quotas.admits_connection("10.0.0.1")
    await quotas.alter(CALLER, checked_entity([(IP, "10.0.0.1")]), changes(connection_creation_rate=1))
    admitted = [quotas.admits_connection("10.0.0.1") for _ in range(12)]
    assert admitted == [True] * 10 + [False] * 2
    assert quotas.admits_connection("10.0.0.2")
    assert quotas.throttled[CONNECTION_CREATION_RATE] == 2
    storage.clock.advance(seconds=11)
    assert quotas.admits_connection("10.0.0.1")


@pytest.fixture
def muted() -> list[int]:
    return []


@pytest.fixture
def mute(muted: list[int]) -> Callable[[int], None]:
    return muted.append


async def test_a_request_says_the_longest_throttling(
    quotas: Quotas, muted: list[int], mute: Callable[[int], None]
) -> None:
    quotas.meter(CALLER, "app", 0, mute).worked(seconds=20)
    meter = quotas.meter(CALLER, "app", 1500, mute)
    meter.produced()
    meter.answered()
    assert muted == [5_000, 1_000]
    assert meter.throttle_ms == 5_000


async def test_the_time_of_requests_throttles_for_a_second_at_most(
    quotas: Quotas, storage: Storage, muted: list[int], mute: Callable[[int], None]
) -> None:
    quotas.meter(CALLER, "app", 0, mute).worked(seconds=10.5)
    meter = quotas.meter(CALLER, "app", 0, mute)
    meter.answered()
    assert meter.throttle_ms == 500
    storage.clock.advance(ms=500)
    quotas.meter(CALLER, "app", 0, mute).worked(seconds=60)
    assert not quotas.meter(CALLER, "app", 0, mute).may_fetch(1)
    assert muted == [500, 1_000]


async def test_a_fetch_asks_for_no_more_than_it_may_have(quotas: Quotas, mute: Callable[[int], None]) -> None:
    assert quotas.meter(CALLER, "app", 0, mute).max_fetch_bytes(1 << 20) == 1000
    assert quotas.meter(CALLER, "app", 0, mute).max_fetch_bytes(10) == 10
    await quotas.alter(CALLER, EVERYBODY, changes(consumer_byte_rate=None))
    assert quotas.meter(CALLER, "app", 0, mute).max_fetch_bytes(1 << 20) == 1 << 20


async def test_a_broker_starts_with_the_quotas_it_had(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        assert not broker.clients.quotas.in_force
        await broker.clients.quotas.alter(CALLER, APP, changes(producer_byte_rate=5))
    async with running_parts({"clients.quota_window_count": 3}, storage) as broker:
        assert in_window(broker) == 10


def in_window(broker: BrokerNode) -> int:
    return broker.clients.quotas.window_amount(limited(broker.clients.quotas, PRODUCER_BYTE_RATE))
