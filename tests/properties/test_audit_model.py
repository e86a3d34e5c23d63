"""The audit against a model that counts decisions: each is in one event, or counted as dropped."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from conveyor.broker.clients.audit import SAMPLED, Audit
from conveyor.broker.clients.audit_event import AuditEvent
from conveyor.broker.tasks import Tasks
from conveyor.kernel.access.acl import AclOperation, ResourceType
from conveyor.kernel.access.acl_rules import NOT_ALLOWED, NOT_NAMED, SUPER_USER, AccessDecision
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType
from conveyor.testing import ManualClock
from tests.unit.broker.room_services import room_services

OPERATIONS = (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
CALLERS = tuple(
    Caller(Principal(PrincipalType.USER, user), address, PLAINTEXT, 1)
    for user, address in (("alice", "192.0.2.1"), ("alice", "192.0.2.2"), ("bob", "192.0.2.1"))
)


class Decided(NamedTuple):
    """A decision that a client's request needs."""

    caller: Caller
    operation: AclOperation
    name: str
    decision: AccessDecision

    @property
    def kind(self) -> tuple[object, ...]:
        who = str(self.caller.principal), self.caller.address
        return *who, self.operation.value, self.name, self.decision.is_allowed, self.decision.rule


DECISIONS = st.builds(
    Decided,
    st.sampled_from(CALLERS),
    st.sampled_from(OPERATIONS),
    st.sampled_from(("a", "b" * 600)),
    st.sampled_from((SUPER_USER, NOT_NAMED, NOT_ALLOWED)),
)
PASSING_MS = st.sampled_from((1, 1_000, 30_000, 60_000))
STEPS = st.lists(st.one_of(DECISIONS, DECISIONS, PASSING_MS, st.just("write")), max_size=60)


def shown(event: AuditEvent) -> tuple[object, ...]:
    name = "b" * 600 if event.resource.startswith("b") else event.resource
    return event.principal, event.address, event.operation, name, event.allowed, event.rule


@given(steps=STEPS, max_bytes_per_second=st.sampled_from((10, 16_384)))
def test_each_decision_is_in_one_event_or_dropped(steps: list[Decided | int | str], max_bytes_per_second: int) -> None:
    events, dropped = asyncio.run(events_of(steps, max_bytes_per_second))
    expected = Counter(step.kind for step in steps if isinstance(step, Decided))
    found: Counter[tuple[object, ...]] = Counter()
    for event in events:
        found[shown(event)] += event.count
    assert not found - expected
    assert (expected - found).total() == dropped.total()
    assert set(dropped) <= {"rate"}
    administration = [event for event in events if event.allowed and event.operation == AclOperation.CREATE.value]
    assert all(event.count == 1 for event in administration)
    for kind, count in (expected - found).items():
        assert kind[2] in {operation.value for operation in SAMPLED} or not kind[4], f"{count} of administration"


async def events_of(
    steps: list[Decided | int | str], max_bytes_per_second: int
) -> tuple[list[AuditEvent], Counter[str]]:
    """Return the events of decisions, and how many were dropped."""
    clock, bugs = ManualClock(), list[BaseException]()
    services = room_services(clock, Tasks(bugs.append))
    access = replace(services.settings.access, audit_max_bytes_per_second=max_bytes_per_second)
    services.settings = replace(services.settings, access=access)
    audit, events = Audit(services), list[AuditEvent]()
    for step in steps:
        if isinstance(step, Decided):
            audit.note(step.caller, "Api", step.operation, ResourceType.TOPIC, step.name, step.decision)
        elif isinstance(step, int):
            clock.advance(ms=step)
            await asyncio.sleep(0)
        else:
            events += audit.take(1_000)
    audit.show_last_counts()
    events += audit.take(1 << 30)
    audit.close()
    assert not bugs
    return events, +audit.dropped
