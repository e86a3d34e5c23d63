"""Lists of many things share the event loop: each of its turns shows some."""

from collections.abc import Callable
from typing import Any

import pytest

from conveyor.http.engine.exchange_memory import ExchangeMemory
from conveyor.http_api.rest import schedule_endpoints, subscription_endpoints
from conveyor.queues.subscription.policy import StartPosition
from conveyor.schedules.definition import Schedule
from tests.callers import CALLER
from tests.unit.broker.queues.dead_letters.test_dead_letter_turns import most_in_a_turn
from tests.unit.http_api.guarded_door import guarded_door

LARGE = b"x" * 100_000


def shown_by(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[str]:
    """Return the names of what a function shows from now on; they are its last argument's."""
    shown: list[str] = []
    show: Callable[..., Any] = getattr(module, name)

    def look(*arguments: Any) -> Any:
        shown.append(arguments[-1].name)
        return show(*arguments)

    monkeypatch.setattr(module, name, look)
    return shown


@pytest.mark.parametrize("path", ["/subscriptions", "/topics/orders/subscriptions"])
async def test_subscriptions_are_listed_some_in_each_turn(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr("conveyor.broker.slices.SLICE_ITEMS", 2)
    names = [f"s{number}" for number in range(5)]
    async with guarded_door() as door:
        for name in names:
            await door.broker.queues.lifecycle.create(CALLER, "orders", name, StartPosition(), {})
        shown = shown_by(monkeypatch, subscription_endpoints, "show_subscription")
        answer, most = await most_in_a_turn(door.ask("root", "GET", path), shown)
    assert [listed["name"] for listed in answer.document["subscriptions"]] == shown == ["billing", *names]
    assert most == 2


@pytest.mark.parametrize(("payload", "expected"), [(b"", 10), (b"x" * 1_000_000, 1)])
async def test_schedules_are_listed_ten_in_each_turn_and_large_ones_alone(
    monkeypatch: pytest.MonkeyPatch, payload: bytes, expected: int
) -> None:
    names = [f"s{number:02}" for number in range(5 if payload else 25)]
    async with guarded_door() as door:
        for name in names:
            schedule = Schedule(name=name, topic="mails", cron="0 3 * * *", payload=payload)
            await door.broker.schedules.add(CALLER, schedule)
        await door.allow("alice", "describe topic mails")
        shown = shown_by(monkeypatch, schedule_endpoints, "_show")
        answer, most = await most_in_a_turn(door.ask("alice", "GET", "/schedules"), shown)
    assert [listed["name"] for listed in answer.document["schedules"]] == shown == names
    assert most == expected


@pytest.mark.parametrize(("payload", "held_bytes"), [(b"", 0), (LARGE, 2 * len(LARGE))])
async def test_large_schedules_are_listed_within_the_memory_for_responses(
    monkeypatch: pytest.MonkeyPatch, payload: bytes, held_bytes: int
) -> None:
    held: list[int] = []
    hold = ExchangeMemory.hold

    def counted(memory: ExchangeMemory, size_bytes: int) -> None:
        held.append(size_bytes)
        hold(memory, size_bytes)

    monkeypatch.setattr(ExchangeMemory, "hold", counted)
    async with guarded_door() as door:
        schedule = Schedule(name="large", topic="mails", cron="0 3 * * *", payload=payload)
        await door.broker.schedules.add(CALLER, schedule)
        for user, is_shown in (("root", True), ("alice", False)):
            held.clear()
            listed = (await door.ask(user, "GET", "/schedules")).document["schedules"]
            large = [schedule for schedule in listed if schedule["name"] == "large"]
            assert [schedule["payload"] for schedule in large] == [payload.decode()] * is_shown
            assert sum(held) // 10_000 == held_bytes * is_shown // 10_000
