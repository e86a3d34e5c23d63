"""Messages that are not due: the log keeps them until then, and nothing but the clock looks at all of them."""

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.queues.delivery.deliveries import Deliveries
from conveyor.queues.delivery.timers import NotDue, Timers
from conveyor.queues.messages.scan import Scanned
from conveyor.queues.queue_commands import SubscriptionProbe
from conveyor.queues.subscription.policy import StartPosition, Subscription, default_policy
from conveyor.queues.subscription.subscription_progress import Progress

COUNT = 1_000
DUE_MS = 1_000
TIMES = st.integers(0, 10)


@given(st.dictionaries(st.integers(0, 10_000), TIMES, max_size=8), st.sets(st.integers(0, 7)), TIMES)
def test_cancelled_messages_are_not_due_and_the_first_timer_is_known(
    times_ms: dict[int, int], cancelled: set[int], now_ms: int
) -> None:
    not_due = NotDue()
    for offset, time_ms in times_ms.items():
        not_due.add(offset, time_ms)
    gone = {offset for number, offset in enumerate(times_ms) if number in cancelled}
    for offset in (*gone, 10_001):
        not_due.cancel(offset)
    assert not_due.cancelled == gone
    assert not_due.offsets.first() == min(times_ms, default=None)
    due = {offset for offset, time_ms in times_ms.items() if time_ms <= now_ms}
    assert {offset for offset, _, _ in not_due.pop_due(now_ms, len(times_ms))} == due - gone
    assert not_due.offsets.first() == min(times_ms.keys() - due, default=None)
    assert not_due.cancelled == gone - due


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_retention_and_cancellations_do_not_look_at_all_timers(monkeypatch: pytest.MonkeyPatch, ordering: str) -> None:
    policy = replace(default_policy("t", 1), ordering=ordering)
    subscription = Subscription(
        id=UUID(int=1), name="s", topic="t", topic_id=UUID(int=2), start=StartPosition(), partition_count=1,
        policy=policy,
    )  # fmt: skip
    deliveries = Deliveries(subscription, Progress(), SubscriptionProbe())
    deliveries.take([Scanned(0, COUNT, 4, DUE_MS, 0, 1, "")], COUNT, 1)
    if ordering == "key":  # A lease has looked at the message, and withheld it until it is due.
        deliveries.withheld.add(COUNT - 1, DUE_MS, 4)
    seen: list[int] = []

    def look(timers: Timers) -> Iterator[int]:
        for number in range(len(timers)):
            seen.append(number)
            yield timers[number]

    monkeypatch.setattr(Timers, "__iter__", look, raising=False)
    assert deliveries.retain_from_offset() == 0
    deliveries.cancel(COUNT - 1)
    assert deliveries.withheld.cancelled == {COUNT - 1}
    assert seen == []
