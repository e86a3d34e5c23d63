"""Answers for the dead letters in the partitions that this broker leads; see `dead_queue`."""

from itertools import islice

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.dead_letters.dead_queue import (
    FIND_COPIES,
    FIND_DEAD,
    LIST_COPIES,
    LIST_DEAD,
    DeadHere,
    DeadPage,
    FindCopies,
    FindDead,
    ListCopies,
    ListDead,
)
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.queues.messages.dead_copies import LAST_OFFSET, CopiedRange
from conveyor.queues.subscription.subscription_progress import Progress


class DeadQueueAnswers:
    def __init__(
        self, services: Services, subscriptions: Subscriptions, calls: QueueCalls, leaders: LeaderCalls
    ) -> None:
        self._slices = services.slices
        self._subscriptions = subscriptions
        self._calls = calls
        leaders.handlers.register(LIST_DEAD, self._list_dead)
        leaders.handlers.register(FIND_DEAD, self._find_dead)
        leaders.handlers.register(LIST_COPIES, self._list_copies)
        leaders.handlers.register(FIND_COPIES, self._find_copies)

    async def _find(self, request: DeadHere) -> tuple[QueuePartition, Progress]:
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        partition = await self._calls.here(request.place)
        queue = partition.machine.queue(subscription.id)
        return partition, Progress() if queue is None else queue.progress

    async def _list_dead(self, caller: Caller, request: ListDead) -> DeadPage:
        partition, progress = await self._find(request)
        offsets = progress.dead.members(request.start, LAST_OFFSET)
        return DeadPage(progress.dead.count, partition.stable_offset, list(islice(offsets, request.limit)))

    async def _find_dead(self, caller: Caller, request: FindDead) -> list[int]:
        _, progress = await self._find(request)
        await self._slices.turn()
        return [offset for offset in request.offsets if offset in progress.dead]

    async def _list_copies(self, caller: Caller, request: ListCopies) -> list[CopiedRange]:
        _, progress = await self._find(request)
        return list(islice(progress.copies.from_copy(request.topic_id, *request.start), request.limit))

    async def _find_copies(self, caller: Caller, request: FindCopies) -> list[CopiedRange]:
        _, progress = await self._find(request)
        found: list[CopiedRange] = []
        await self._slices.turn()
        for log in progress.copies.logs(request.topic_id):
            for offset in request.offsets:
                found += progress.copies.of_originals(log, offset, offset + 1)
            await self._slices.turn()
        return found
