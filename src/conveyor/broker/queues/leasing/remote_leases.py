"""Leases of messages that other brokers lead, and what those brokers answer. A lease is granted by the leader alone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import msgspec

from conveyor.broker.queues.leasing.lease import Lease
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.queues.subscription.policy import Subscription

_TIMEOUT_MS = 5_000


class LeaseHere(msgspec.Struct, frozen=True, array_like=True):
    """Lease messages of the partitions that the asked broker leads, without waiting."""

    subscription: str
    subscription_id: UUID
    count: int
    visibility_ms: int


_LEASE: Call[LeaseHere, list[Lease]] = Call("queue.lease", LeaseHere, list[Lease], is_repeatable=False)

GiveBack = Callable[[Subscription, Sequence[Lease]], None]


class RemoteLeases:
    """See the module's docstring. give_back: releases leases whose asker has gone."""

    def __init__(
        self, leaders: LeaderCalls, answer: Callable[[LeaseHere], Awaitable[list[Lease]]], give_back: GiveBack
    ) -> None:
        self._leaders = leaders
        self._give_back = give_back
        leaders.handlers.register(_LEASE, answer)

    async def take(
        self, subscription: Subscription, node_id: NodeId, count: int, visibility_ms: int
    ) -> list[Lease] | RequestError:
        """Lease messages from another broker, or return why not; the others can still serve the request.

        If the task is cancelled, leases that still arrive are given back.
        """
        request = LeaseHere(subscription.name, subscription.id, count, visibility_ms)
        asking = asyncio.ensure_future(self._ask(node_id, request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda asked: self._return(subscription, asked))
            raise

    async def _ask(self, node_id: NodeId, request: LeaseHere) -> list[Lease] | RequestError:
        try:
            return await self._leaders.ask_node(_LEASE, node_id, request, _TIMEOUT_MS)
        except RequestError as error:
            return error
        except PeerUnreachable as failure:
            return RequestError(ErrorKind.NOT_LEADER, f"a leader cannot be reached: {failure}")

    def _return(self, subscription: Subscription, asked: "asyncio.Future[list[Lease] | RequestError]") -> None:
        if not asked.cancelled() and isinstance(leases := asked.result(), list) and leases:
            self._give_back(subscription, leases)
