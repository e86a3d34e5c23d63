"""Leases of messages that other brokers lead, and what those brokers answer. A lease is granted by the leader alone."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import msgspec

from conveyor.broker.answers import answered, ignored
from conveyor.broker.queues.leasing.own_leases import LeaseRequest
from conveyor.broker.queues.message_targets import find_target
from conveyor.broker.queues.queue_calls import QueueCalls, place_of
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.queues.queue_commands import LeasedMessage, Release, Target
from conveyor.queues.subscription.policy import Subscription

_TIMEOUT_MS = 5_000


class LeaseHere(msgspec.Struct, frozen=True, array_like=True):
    """Lease messages of the partitions that the asked broker leads, without waiting."""

    subscription: str
    subscription_id: UUID
    count: int
    visibility_ms: int
    client_id: str = ""


LEASE: Call[LeaseHere, list[LeasedMessage]] = Call("queue.lease", LeaseHere, list[LeasedMessage], is_repeatable=False)


class RemoteLeases:
    def __init__(self, services: Services, calls: QueueCalls, leaders: LeaderCalls) -> None:
        self._tasks = services.tasks
        self._calls = calls
        self._leaders = leaders

    async def take(self, request: LeaseRequest, node_id: NodeId) -> list[LeasedMessage]:
        """Lease messages from another broker. Raises RequestError; the others can still serve the request.

        If the task is cancelled, leases that still arrive are given back.
        """
        subscription = request.subscription
        max_messages, visibility_ms, client_id = request.max_messages, request.visibility_ms, request.client_id
        ask = LeaseHere(subscription.name, subscription.id, max_messages, visibility_ms, client_id)
        return await answered(
            partial(self._tasks.answer, self._ask(request.caller, node_id, ask)),
            partial(self.give_back, request.caller, subscription),
        )

    async def _ask(self, caller: Caller, node_id: NodeId, request: LeaseHere) -> list[LeasedMessage]:
        try:
            return await self._leaders.ask_node(caller, LEASE, node_id, request, _TIMEOUT_MS)
        except PeerUnreachable as failure:
            raise RequestError(ErrorKind.NOT_LEADER, f"a leader cannot be reached: {failure}") from failure

    def give_back(
        self, caller: Caller, subscription: Subscription, leases: Sequence[LeasedMessage], *, delay_ms: int = 0
    ) -> None:
        """End leases that reached no client, on whichever broker: their messages count as never delivered.

        delay_ms: the time until they may be leased again.
        """
        by_partition: dict[int, list[Target]] = {}
        for lease in leases:
            resolved = find_target(subscription, lease.ack_id, lease.message.partition + 1)
            if not isinstance(resolved, RequestError):
                by_partition.setdefault(resolved[0], []).append(resolved[1])
        for number, targets in by_partition.items():
            command = Release(subscription=subscription.id, targets=tuple(targets), delay_ms=delay_ms)
            self._calls.submit(caller, place_of(subscription, number), command, ignored)  # If it fails, they expire.
