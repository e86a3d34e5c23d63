"""The run of a move task, on the broker that was asked for it.

It leases a few messages of the dead-letter queue, publishes copies, and acknowledges the messages, in one transaction:
a message is moved once, whatever stops the run.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from conveyor.broker.answers import pause
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.transaction_requests.transaction_request import Acknowledgement, TopicMessage, TransactionRequest
from conveyor.http_api.sqs.moves.move_task import CANCELLED, COMPLETED, FAILED, MoveTask, is_cancelled, written
from conveyor.http_api.sqs.queues.queue_names import existing_queue
from conveyor.kernel.access.acl import AclOperation, ResourceType
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.declared_access import READ, WRITE
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEAD_HEADERS, DEAD_SUBSCRIPTION, ONLY_FOR, last_header

log = logging.getLogger(__name__)

_AT_ONCE = 10
_LEASE_MS = 60_000
_WRITE_EVERY_MS = 5_000
_DROPPED = frozenset((*DEAD_HEADERS, ONLY_FOR))


class MoveRun:
    """See the module's docstring. caller: the client that has started the task, whose rights it needs."""

    def __init__(self, broker: BrokerNode, caller: Caller, source: str, task: MoveTask) -> None:
        self._broker = broker
        self._caller = caller
        self._source = source
        self._task = task

    async def run(self) -> None:
        """Move messages until there are none, or the task is cancelled. Notes how it has ended."""
        reason = None
        try:
            status = await self._move_all()
        except RequestError as error:
            status, reason = FAILED, error.detached().message
            log.warning("move task failed queue=%s task=%s: %s", self._source, self._task.id, reason)
        with suppress(RequestError):  # The queue may be gone, and the task with it.
            await self._write(replace(self._task, status=status, reason=reason))

    async def _move_all(self) -> str:
        """Return the status in which the task ends. Raises RequestError."""
        broker, clock, rate = self._broker, self._broker.clock, self._task.rate
        count = _AT_ONCE if rate is None else min(_AT_ONCE, rate)
        while True:
            if is_cancelled(existing_queue(broker, self._source), self._task):
                return CANCELLED
            self._check_rights()
            leases = await broker.queues.leases.lease(self._caller, self._source, count, 0, _LEASE_MS)
            if not leases:
                return COMPLETED
            await self._move(leases)
            self._task = replace(self._task, moved=self._task.moved + len(leases))
            if clock.now_ms() - self._task.updated_ms >= _WRITE_EVERY_MS:
                await self._write(self._task)
            if rate is None:
                await broker.slices.turn()
            else:
                await pause(clock, -(-1000 * len(leases) // rate))

    async def _move(self, leases: Sequence[LeasedMessage]) -> None:
        """Move leased messages, all of them or none. Raises RequestError."""
        broker = self._broker
        try:
            messages = [self._copy(lease.message) for lease in leases]
            acknowledgement = Acknowledgement(self._source, [lease.ack_id for lease in leases])
            request = TransactionRequest(None, messages, [acknowledgement])
            await broker.transaction_requests.execute(self._caller, request)
        except RequestError:
            broker.queues.leases.give_back(self._caller, self._source, leases)
            raise

    def _copy(self, message: Message) -> TopicMessage:
        """Return the copy of a message, and its queue. Raises RequestError."""
        destination = self._task.destination
        if destination is None:
            source = last_header(message.headers, DEAD_SUBSCRIPTION)
            if source is None:
                raise RequestError(ErrorKind.INVALID_REQUEST, "CouldNotDetermineMessageSource")
            destination = source.decode("utf-8", "replace")
        self._check(WRITE, ResourceType.TOPIC, destination)
        topic = existing_queue(self._broker, destination).topic
        headers = tuple(header for header in message.headers if header[0] not in _DROPPED)
        return topic, OutgoingMessage(message.value, message.key, headers)

    def _check_rights(self) -> None:
        """Raise RequestError if the client has lost a right meanwhile."""
        self._check(READ, ResourceType.GROUP, self._source)
        self._check(READ, ResourceType.TOPIC, self._source)

    def _check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        if not self._broker.clients.access.allows(self._caller, operation, resource_type, name):
            reason = f"{self._caller.principal} has no right to {operation.value} {resource_type.value}"
            raise RequestError(ErrorKind.TOPIC_AUTHORIZATION_FAILED, reason)

    async def _write(self, task: MoveTask) -> None:
        self._task = replace(task, updated_ms=self._broker.clock.now_ms())
        await self._broker.queues.lifecycle.change(self._caller, self._source, {}, annotations=written(self._task))
