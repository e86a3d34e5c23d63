"""Batches on their way to a topic that asks for another codec: packed anew on threads, handed on in their order."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Bytes
from conveyor.kernel.settings import TopicSettings
from conveyor.log.recompression import recompress, wants_recompression
from conveyor.replication.partition import Partition

Ready = Callable[[Bytes | RequestError], None]
"""Takes the batch as it is appended, or why it cannot be."""


@dataclass(slots=True)
class _Waiting:
    ready: Ready
    outcome: Bytes | RequestError | None = None


class Recompression:
    """A queue for each partition that has batches under way; most topics never have one."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._queues: dict[Partition, deque[_Waiting]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_busy(self) -> bool:
        return bool(self._queues)

    def must_wait(self, partition: Partition, batch: Bytes) -> bool:
        """Whether a sound batch has to be packed anew, or to stand behind others that are."""
        if self._queues and partition in self._queues:
            return True
        return wants_recompression(partition.log.topic, batch)

    def add(self, partition: Partition, batch: Bytes, ready: Ready) -> None:
        """Queue a batch; `ready` is called once, in the order of the calls of `add`."""
        waiting = _Waiting(ready)
        self._queues.setdefault(partition, deque()).append(waiting)
        self._idle.clear()
        if wants_recompression(partition.log.topic, batch):
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, _recompress, batch, partition.log.topic)
            running.add_done_callback(partial(self._done, partition, waiting))
        else:
            waiting.outcome = batch
            self._hand_on(partition)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        await self._idle.wait()

    def _done(self, partition: Partition, waiting: _Waiting, running: "asyncio.Future[Bytes | RequestError]") -> None:
        waiting.outcome = running.result()
        self._hand_on(partition)

    def _hand_on(self, partition: Partition) -> None:
        queue = self._queues[partition]
        while queue and (outcome := queue[0].outcome) is not None:
            queue.popleft().ready(outcome)
        if not queue:
            del self._queues[partition]
        if not self._queues:
            self._idle.set()


def _recompress(batch: Bytes, topic: TopicSettings) -> Bytes | RequestError:
    try:
        return recompress(batch, topic)
    except RequestError as error:
        return error
