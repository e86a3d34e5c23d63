"""Leases of messages that other brokers lead, and what those brokers answer. A lease is granted by the leader alone."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import msgspec

from conveyor.broker.answers import ignored
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.queues.leasing.lease import Lease
from conveyor.broker.queues.message_targets import find_target
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.kernel.peers import PeerUnreachable
from conveyor.queues.queue_commands import Release, Target
from conveyor.queues.subscription.policy import Subscription

_TIMEOUT_MS = 5_000


class LeaseHere(msgspec.Struct, frozen=True, array_like=True):
    """Lease messages of the partitions that the asked broker leads, without waiting."""

    subscription: str
    subscription_id: UUID
    count: int
    visibility_ms: int


LEASE: Call[LeaseHere, list[Lease]] = Call("queue.lease", LeaseHere, list[Lease], is_repeatable=False)


class RemoteLeases:
    """See the module's docstring."""

    def __init__(
        self, services: Services, partitions: QueuePartitions, calls: QueueCalls, leaders: LeaderCalls
    ) -> None:
        self._tasks = services.tasks
        self._partitions = partitions
        self._calls = calls
        self._leaders = leaders

    async def take(
        self, caller: Caller, subscription: Subscription, node_id: NodeId, count: int, visibility_ms: int
    ) -> list[Lease] | RequestError:
        """Lease messages from another broker, or return why not; the others can still serve the request.

        If the task is cancelled, leases that still arrive are given back.
        """
        request = LeaseHere(subscription.name, subscription.id, count, visibility_ms)
        asking = asyncio.ensure_future(self._ask(caller, node_id, request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda asked: self._return(caller, subscription, asked))
            raise

    async def _ask(self, caller: Caller, node_id: NodeId, request: LeaseHere) -> list[Lease] | RequestError:
        try:
            return await self._leaders.ask_node(caller, LEASE, node_id, request, _TIMEOUT_MS)
        except RequestError as error:
            return error
        except PeerUnreachable as failure:
            return RequestError(ErrorKind.NOT_LEADER, f"a leader cannot be reached: {failure}")

    def _return(
        self, caller: Caller, subscription: Subscription, asked: "asyncio.Future[list[Lease] | RequestError]"
    ) -> None:
        if not asked.cancelled() and isinstance(leases := asked.result(), list) and leases:
            self.give_back(caller, subscription, leases)

    def give_back(self, caller: Caller, subscription: Subscription, leases: Sequence[Lease]) -> None:
        """End leases that reached no client, on whichever broker: their messages count as never delivered."""
        by_partition: dict[int, list[Target]] = {}
        for lease in leases:
            resolved = find_target(subscription, lease.ack_id, lease.message.partition + 1)
            if not isinstance(resolved, RequestError):
                by_partition.setdefault(resolved[0], []).append(resolved[1])
        for number, targets in by_partition.items():
            command = Release(subscription=subscription.id, targets=tuple(targets))
            queue = self._partitions.find(TopicPartition(subscription.topic, number))
            if queue is not None:
                queue.submit(command, ignored)
            else:
                self._tasks.start(self._release_elsewhere(caller, subscription, number, command))

    async def _release_elsewhere(
        self, caller: Caller, subscription: Subscription, number: int, command: Release
    ) -> None:
        with suppress(RequestError):  # The leases then expire.
            await self._calls.ask(caller, subscription.topic, subscription.topic_id, number, command)
