"""Waits until the leaders of new partitions have opened them, so that a client can use a topic that it has created.

The wait is bounded and a failure is ignored: the topic exists, and clients ask again until its leaders serve it.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.cluster.image import NO_LEADER, PartitionImage
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable

CAUGHT_UP: Call[None, None] = Call("caught-up", None, None, is_repeatable=True)
"""Answered once the other broker has applied the image of the broker that asks, like every call."""

_PATIENCE_MS = 1_000


class NewLeaders:
    def __init__(self, calls: LeaderCalls) -> None:
        self._calls = calls
        calls.handlers.register(CAUGHT_UP, _answer)

    async def opened(self, caller: Caller, partitions: Iterable[PartitionImage]) -> None:
        """Return once the leaders on other brokers serve these partitions, or the time is up."""
        leaders = {partition.leader for partition in partitions} - {self._calls.node_id, NO_LEADER}
        if leaders:
            await asyncio.gather(*(self._caught_up(caller, node_id) for node_id in leaders))

    async def _caught_up(self, caller: Caller, node_id: NodeId) -> None:
        with suppress(RequestError, PeerUnreachable):
            await self._calls.ask_node(caller, CAUGHT_UP, node_id, None, _PATIENCE_MS)


async def _answer(_: Caller, __: None) -> None:
    """The call is answered once this broker has caught up; there is nothing else to do."""
