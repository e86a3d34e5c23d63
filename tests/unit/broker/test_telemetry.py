"""Telemetry: clients are asked for no metrics, may ask again after the interval, and are told what they did wrong."""

from collections.abc import Iterator
from itertools import count
from uuid import UUID

import pytest

from conveyor.broker import telemetry as module
from conveyor.broker.telemetry import Push, Subscription, Telemetry
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.settings import ClientSettings
from tests.unit.broker.parts import NOW_MS

INTERVAL_MS = 1000


@pytest.fixture
def telemetry() -> Telemetry:
    ids: Iterator[UUID] = (UUID(int=number) for number in count(1))
    settings = ClientSettings(telemetry_push_interval_ms=INTERVAL_MS, telemetry_max_bytes=100)
    return Telemetry(lambda: next(ids), settings)


def push(subscription: Subscription, **changed: object) -> Push:
    values: dict[str, object] = {
        "client_instance_id": subscription.client_instance_id,
        "subscription_id": subscription.subscription_id,
        "terminating": False,
        "compression_type": 0,
        "size_bytes": 100,
    }
    return Push(**(values | changed))  # type: ignore[arg-type]


def refused(telemetry: Telemetry, pushed: Push, now_ms: int = NOW_MS) -> ErrorKind:
    with pytest.raises(RequestError) as caught:
        telemetry.push(pushed, now_ms)
    return caught.value.kind


def is_early(telemetry: Telemetry, identity: UUID, now_ms: int) -> bool:
    try:
        telemetry.subscribe(identity, now_ms)
    except RequestError as error:
        return error.kind is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    return False


def test_a_new_client_is_given_an_id_of_its_own(telemetry: Telemetry) -> None:
    first, second = telemetry.subscribe(None, NOW_MS), telemetry.subscribe(None, NOW_MS)
    assert (first.client_instance_id, second.client_instance_id) == (UUID(int=1), UUID(int=2))
    assert (first.push_interval_ms, first.max_bytes) == (INTERVAL_MS, 100)


def test_a_client_keeps_its_id_and_its_subscription(telemetry: Telemetry) -> None:
    first = telemetry.subscribe(None, NOW_MS)
    assert telemetry.subscribe(first.client_instance_id, NOW_MS + INTERVAL_MS) == first
    elsewhere = Telemetry(UUID, ClientSettings(telemetry_push_interval_ms=INTERVAL_MS, telemetry_max_bytes=100))
    assert elsewhere.subscribe(first.client_instance_id, NOW_MS) == first
    assert -(1 << 31) <= first.subscription_id < 1 << 31


def test_asking_again_has_to_wait_for_the_interval(telemetry: Telemetry) -> None:
    identity = telemetry.subscribe(None, NOW_MS).client_instance_id
    assert is_early(telemetry, identity, NOW_MS + INTERVAL_MS - 1)
    assert not is_early(telemetry, identity, NOW_MS + INTERVAL_MS)


def test_a_push_is_taken_once_an_interval(telemetry: Telemetry) -> None:
    subscription = telemetry.subscribe(None, NOW_MS)
    telemetry.push(push(subscription), NOW_MS + 1)
    assert refused(telemetry, push(subscription), NOW_MS + INTERVAL_MS) is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    telemetry.push(push(subscription, compression_type=4), NOW_MS + INTERVAL_MS + 1)


def test_the_last_push_may_be_early_and_is_the_last(telemetry: Telemetry) -> None:
    subscription = telemetry.subscribe(None, NOW_MS)
    telemetry.push(push(subscription), NOW_MS)
    telemetry.push(push(subscription, terminating=True), NOW_MS)
    for _ in range(2):
        assert refused(telemetry, push(subscription), NOW_MS + INTERVAL_MS) is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("changed", "kind", "may_ask"),
    [
        ({"client_instance_id": None}, ErrorKind.INVALID_REQUEST, False),
        ({"subscription_id": 0}, ErrorKind.UNKNOWN_SUBSCRIPTION_ID, True),
        ({"client_instance_id": UUID(int=99)}, ErrorKind.UNKNOWN_SUBSCRIPTION_ID, False),
        ({"compression_type": 5}, ErrorKind.UNSUPPORTED_COMPRESSION, True),
        ({"size_bytes": 101}, ErrorKind.TELEMETRY_TOO_LARGE, False),
    ],
)
def test_a_wrong_push_is_refused(
    telemetry: Telemetry, changed: dict[str, object], kind: ErrorKind, may_ask: bool
) -> None:
    subscription = telemetry.subscribe(None, NOW_MS)
    assert refused(telemetry, push(subscription, **changed)) is kind
    assert is_early(telemetry, subscription.client_instance_id, NOW_MS + 1) is not may_ask


def test_a_client_that_was_forgotten_may_push_and_ask_at_once(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 1)
    forgotten = telemetry.subscribe(None, NOW_MS)
    assert not is_early(telemetry, telemetry.subscribe(None, NOW_MS).client_instance_id, NOW_MS + INTERVAL_MS)
    telemetry.push(push(forgotten), NOW_MS)
