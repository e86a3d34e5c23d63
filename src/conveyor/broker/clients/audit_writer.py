"""Writes the events of the audit to `__audit`, which it creates for the first one.

Events are collected for a second, and written by acks=all. What cannot be written, because the disk is full or the
partition is offline, is written again later; new events wait meanwhile, until `audit` has no more memory for them. An
event whose write was not answered may be written twice.
"""

import asyncio
import logging

import msgspec

from conveyor.broker.clients.audit import Audit
from conveyor.broker.clients.audit_event import AuditEvent, encode_event
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import AUDIT_TOPIC
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import AUDIT
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ERRORS, RequestError

log = logging.getLogger(__name__)

LINGER_MS = 1_000
"""For so long, events are collected. Equal denials of that time are one event."""
_RETRY_MS = 5_000
_BATCH_BYTES = 256 << 10


class AuditWriter:
    """See the module's docstring. It begins with the first event, and ends when the broker stops serving."""

    def __init__(self, services: Services, audit: Audit, topics: Topics, publisher: MessagePublisher) -> None:
        self._services = services
        self._audit = audit
        self._topics = topics
        self._publisher = publisher
        self._unwritten: list[AuditEvent] = []
        """Events of a batch, until they are written or refused for good."""
        self._reason: str | None = None
        """The reason why events could not be written the last time."""
        self._one_at_a_time = asyncio.Lock()
        self._alarm = Alarm(services.clock, self._on_alarm)
        audit.offered.listen(lambda _: self._offered())
        services.serving.push_async_callback(self._stop)

    def _offered(self) -> None:
        if not self._alarm.is_set and not self._one_at_a_time.locked():
            self._alarm.after(LINGER_MS)

    def _on_alarm(self) -> None:
        self._services.tasks.start(self._write())

    async def _write(self) -> None:
        """Write the events that wait, and those that come meanwhile later."""
        async with self._one_at_a_time:
            is_written = await self._write_all()
        if not is_written:
            self._alarm.after(_RETRY_MS)
        elif self._audit.waiting_count:
            self._alarm.after(LINGER_MS)

    async def _write_all(self) -> bool:
        """Write the events that wait now. Returns whether no event has to be written again."""
        for _ in range(self._audit.waiting_count + 1):
            self._unwritten = self._unwritten or self._audit.take(_BATCH_BYTES)
            if not self._unwritten:
                break
            self._unwritten = await self._publish(self._unwritten)
            if self._unwritten:
                return False
        return True

    async def _publish(self, events: list[AuditEvent]) -> list[AuditEvent]:
        """Publish events. Returns those that have to be published again."""
        messages = [OutgoingMessage(value=encode_event(event), key=event.key) for event in events]
        caller = msgspec.structs.replace(self._services.own_caller, listener=AUDIT)
        try:
            await self._topics.ensure(caller, TopicRequest(name=AUDIT_TOPIC))
            results = await self._publisher.publish(caller, AUDIT_TOPIC, messages)
        except RequestError as error:
            self._tell(error)
            return events
        again: list[AuditEvent] = []
        refusal: RequestError | None = None
        for event, result in zip(events, results, strict=True):
            if not isinstance(result, RequestError):
                self._audit.written += event.count
                continue
            refusal = result
            if ERRORS[result.kind].retriable:
                again.append(event)
            else:
                self._audit.drop(event, "refused")
        self._tell(refusal)
        return again

    def _tell(self, error: RequestError | None) -> None:
        """Log that events could not be written, or can be again."""
        if error is None:
            if self._reason is not None:
                log.info("audit written again")
            self._reason = None
        else:
            if self._reason is None:
                log.warning("audit not written reason=%s: requests go on", error)
            self._reason = error.message

    async def _stop(self) -> None:
        """Write what is left, unless that takes too long."""
        self._alarm.end()
        self._audit.show_last_counts()
        drain_s = self._services.settings.network.drain_timeout_ms / 1000
        try:
            async with asyncio.timeout(drain_s / 2), self._one_at_a_time:  # Clients read their responses in the rest.
                await self._write_all()
        except TimeoutError:
            log.warning("audit not written reason=%s: the broker stops", self._reason or "it takes too long")
        for event in self._unwritten:
            self._audit.drop(event, "stopped")
        self._audit.close()
