"""Audit: makes events of the decisions on clients' requests. They wait here until `audit_writer` writes them.

    administration, allowed     an event for each decision
    denied                      an event for each decision; equal ones that wait together are one event with a count
    reads and writes, allowed   an event for the first decision of its kind, and one a minute for those since then, with
                                their count

A request never waits for its event. Clients could cause any number of events, so the memory for them is bounded, and
the bytes a second of those that are not about administration. What exceeds a bound is dropped and counted.
"""

import logging
from collections import Counter, OrderedDict
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from conveyor.broker.clients.audit_event import (
    MAX_NAME_CHARACTERS,
    AuditEvent,
    audit_event,
    encode_event,
    shown_time,
)
from conveyor.broker.clients.token_bucket import TokenBucket
from conveyor.broker.services import Services
from conveyor.kernel.access.acl import Acl, AclOperation, ResourceType
from conveyor.kernel.access.acl_rules import AccessDecision
from conveyor.kernel.access.caller import Caller, Principal
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.signal import Signal

log = logging.getLogger(__name__)

SAMPLED = frozenset(
    {
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.TWO_PHASE_COMMIT,
    }
)
"""Operations that change neither the cluster nor a resource, besides its records. All others are administration."""
SAMPLE_MS = 60_000
"""The time between two events about the same kind of decision."""
MAX_SAMPLES = 10_000
"""Kinds of decisions that are counted: 10 to 20 MB."""
MAX_WAITING_BYTES = 8 << 20
"""Of the events that wait."""
_BURST_SECONDS = 60
"""For so long without events, the bytes a second accrue."""
_EVENT_BYTES = 600
"""Of an event that waits, besides its encoding. A record has fewer."""
_TELL_MS = 60_000
"""The time between two lines in the log about dropped decisions."""

_Kind = tuple[Principal, str, str, AclOperation, ResourceType, str]
"""Decisions that differ in their connections only: the principal, the address, the request, and what is done on what.
"""


class Concern(Enum):
    """The subject of an event. The value is the share of the memory at which no more of them are taken."""

    ADMINISTRATION = 1.0
    DENIAL = 0.75
    SAMPLE = 0.5


class _Sample:
    """Allowed decisions of one kind, by one rule. shown: the first event. count: decisions that no event shows yet."""

    __slots__ = ("count", "rule", "shown")

    def __init__(self, shown: AuditEvent, rule: Acl | str) -> None:
        self.shown = shown
        self.rule = rule
        self.count = 0


class _Waiting(NamedTuple):
    event: AuditEvent
    size_bytes: int


class Audit:
    """See the module's docstring. written: decisions that `__audit` shows. dropped: those that it will not, by reason.

    offered: emits when an event begins to wait.
    """

    def __init__(self, services: Services) -> None:
        self.written = 0
        self.dropped = Counter(dict.fromkeys(("memory", "rate", "refused", "stopped"), 0))
        self.offered: Signal[None] = Signal()
        self._services = services
        self._clock = services.clock
        self._samples: dict[_Kind, _Sample] = {}
        self._waiting: OrderedDict[object, _Waiting] = OrderedDict()
        """By kind and rule if it is a denial, else by a number."""
        self._waiting_bytes = 0
        self._offered_count = 0
        self._buckets = {Concern.DENIAL: TokenBucket(), Concern.SAMPLE: TokenBucket()}
        self._minute = Alarm(services.clock, self._on_minute)
        self._telling = Alarm(services.clock, self._tell)
        self._told = 0
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """The events that wait."""
        return len(self._waiting)

    def note(
        self,
        caller: Caller,
        request: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        decision: AccessDecision,
    ) -> None:
        """Make an event of a decision that permits or refuses something, or count it. request: the API, or the method
        and the path of the endpoint.
        """
        kind = caller.principal, caller.address, request, operation, resource_type, name
        is_allowed, rule = decision
        if not is_allowed:
            return self._note_denial(kind, caller, decision)
        if operation not in SAMPLED:
            return self._offer_or_drop(self._event(kind, caller, decision), Concern.ADMINISTRATION)
        sample = self._samples.get(kind)
        if sample is not None and sample.rule is rule:
            sample.count += 1  # Nearly every record that is written or read comes here, so no time is asked for.
        else:
            self._note_first(kind, caller, decision, sample)

    def take(self, max_bytes: int) -> list[AuditEvent]:
        """Return the events that have waited longest, of about so many bytes. They wait no more."""
        taken: list[AuditEvent] = []
        while self._waiting and max_bytes > 0:
            _, (event, size_bytes) = self._waiting.popitem(last=False)
            self._waiting_bytes -= size_bytes
            max_bytes -= size_bytes
            taken.append(event)
        return taken

    def drop(self, event: AuditEvent, reason: str) -> None:
        """Count the decisions of an event that will not be written."""
        self._drop(event.count, reason)

    def show_last_counts(self) -> None:
        """Make events of the decisions that have been counted only: the broker stops."""
        for sample in self._samples.values():
            if sample.count:
                self._offer_or_drop(self._counted(sample), Concern.SAMPLE, is_limited=False)
        self._samples.clear()

    def close(self) -> None:
        """Take no more events: nothing writes them any more."""
        self._is_closed = True
        for event, _ in self._waiting.values():
            self.drop(event, "stopped")
        self._waiting.clear()
        self._drop(sum(sample.count for sample in self._samples.values()), "stopped")
        self._samples.clear()
        self._minute.end()
        self._telling.end()
        if self.dropped.total() > self._told:
            self._tell()

    def _note_denial(self, kind: _Kind, caller: Caller, decision: AccessDecision) -> None:
        key = (kind, decision.rule) if len(kind[-1]) <= MAX_NAME_CHARACTERS else None
        waiting = self._waiting.get(key)
        if waiting is None:
            self._offer_or_drop(self._event(kind, caller, decision), Concern.DENIAL, key)
        else:
            waiting.event.count += 1

    def _note_first(self, kind: _Kind, caller: Caller, decision: AccessDecision, before: _Sample | None) -> None:
        """Make an event of an allowed decision, and count those that follow. before: decisions by another rule."""
        if self._is_closed:
            return self._drop(1, "stopped")
        event = self._event(kind, caller, decision)
        if len(kind[-1]) > MAX_NAME_CHARACTERS:
            return self._offer_or_drop(event, Concern.SAMPLE)
        if before is None and len(self._samples) >= MAX_SAMPLES:
            return self._drop(1, "memory")
        if before is not None and before.count:
            self._offer_or_drop(self._counted(before), Concern.SAMPLE)
        self._samples[kind] = sample = _Sample(event, decision.rule)
        if self._offer(event, Concern.SAMPLE) is not None:
            sample.count = 1
        if not self._minute.is_set:
            self._minute.after(SAMPLE_MS)

    def _on_minute(self) -> None:
        self._services.tasks.start(self._end_minute())

    async def _end_minute(self) -> None:
        """Make events of the decisions of a minute. Those that exceed a bound wait for the next one, before others."""
        async for kind, sample in self._services.slices.each(list(self._samples.items())):
            if self._samples.get(kind) is not sample:
                continue
            if sample.count and self._offer(self._counted(sample), Concern.SAMPLE) is None:
                sample.count = 0
                self._samples[kind] = self._samples.pop(kind)
            elif not sample.count:
                del self._samples[kind]
        if self._samples:
            self._minute.after(SAMPLE_MS)

    def _counted(self, sample: _Sample) -> AuditEvent:
        return replace(sample.shown, time=shown_time(self._clock.now_ms()), count=sample.count)

    def _event(self, kind: _Kind, caller: Caller, decision: AccessDecision) -> AuditEvent:
        _, _, request, operation, resource_type, name = kind
        me, now_ms = self._services.me, self._clock.now_ms()
        return audit_event(caller, request, operation, resource_type, name, decision, me, now_ms)

    def _offer_or_drop(
        self, event: AuditEvent, concern: Concern, key: object = None, *, is_limited: bool = True
    ) -> None:
        reason = self._offer(event, concern, key, is_limited=is_limited)
        if reason is not None:
            self.drop(event, reason)

    def _offer(self, event: AuditEvent, concern: Concern, key: object = None, *, is_limited: bool = True) -> str | None:
        """Let an event wait. Returns why it may not. is_limited: by the bytes a second of its concern."""
        if self._is_closed:
            return "stopped"
        bucket = self._buckets.get(concern) if is_limited else None
        if bucket is not None and self._is_spent(bucket):
            return "rate"
        record_bytes = len(encode_event(event))
        size_bytes = record_bytes + _EVENT_BYTES
        if self._waiting_bytes + size_bytes > MAX_WAITING_BYTES * concern.value:
            return "memory"
        if bucket is not None:
            bucket.take(record_bytes)
        self._offered_count += 1
        self._waiting[self._offered_count if key is None else key] = _Waiting(event, size_bytes)
        self._waiting_bytes += size_bytes
        self.offered.emit(None)
        return None

    def _is_spent(self, bucket: TokenBucket) -> bool:
        per_second = self._services.settings.access.audit_max_bytes_per_second
        bucket.fill(per_second, _BURST_SECONDS, self._clock.steady_ms())
        return bucket.debt_ms(per_second) > 0

    def _drop(self, count: int, reason: str) -> None:
        self.dropped[reason] += count
        if not self._telling.is_set and not self._is_closed:
            self._telling.after(_TELL_MS)

    def _tell(self) -> None:
        """Log how many decisions were dropped since the last time."""
        total = self.dropped.total()
        reasons = " ".join(f"{reason}={count}" for reason, count in sorted(self.dropped.items()))
        log.warning("audit incomplete dropped=%d total: %s", total - self._told, reasons)
        self._told = total
