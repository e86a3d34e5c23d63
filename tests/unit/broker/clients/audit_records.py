"""The records of `__audit`, as a test reads them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.audit import Audit
from conveyor.cluster.image import AUDIT_TOPIC
from conveyor.queues.subscription.policy import StartPosition
from conveyor.testing import ManualClock
from tests.callers import CALLER


def audit_of(broker: BrokerNode) -> Audit:
    audit = broker.clients.access.audit
    assert audit is not None
    return audit


async def audit_records(broker: BrokerNode) -> list[dict[str, Any]]:
    """Return the events that are written by now, in their order."""
    if AUDIT_TOPIC not in broker.metadata.image.topics:
        return []
    browse = broker.fetch.browser.browse
    messages = await browse(CALLER, AUDIT_TOPIC, 0, StartPosition(kind="earliest"), 10_000)
    events = [json.loads(message.value or b"") for message in messages]
    assert [(message.key or b"").decode() for message in messages] == [event["principal"] for event in events]
    return events


async def written_records(broker: BrokerNode, clock: ManualClock, decisions: int) -> list[dict[str, Any]]:
    """Return the events once they show so many decisions."""
    await with_time(clock, lambda: audit_of(broker).written >= decisions)
    events = await audit_records(broker)
    assert sum(event["count"] for event in events) == decisions
    return events


async def with_time(clock: ManualClock, condition: Callable[[], bool]) -> None:
    """Let time pass, less than a minute, until a condition holds."""
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
        clock.advance(ms=10)
    raise AssertionError("the condition never holds")
