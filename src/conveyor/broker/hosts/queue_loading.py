"""Loads the queues of topics that have subscriptions, though nobody asks for them, and again after a failure."""

import logging
from collections.abc import Awaitable, Callable

from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock

log = logging.getLogger(__name__)

_RETRY_MS = 5_000


class QueueLoader:
    """See the module's docstring. load: makes all queues of a topic ready; it raises RequestError."""

    def __init__(
        self,
        *,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        clock: Clock,
        tasks: Tasks,
        load: Callable[[str], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._clock = clock
        self._tasks = tasks
        self._load = load
        self._failures: dict[str, str] = {}
        """Why the queues of a topic could not be loaded, at the last attempt."""
        self._retries: dict[str, Callable[[], None]] = {}
        self._is_stopped = False

    def begin(self, topic: str) -> None:
        """Load a topic's queues in a task, if it has subscriptions."""
        if self._subscriptions.all(topic):
            self._tasks.start(self.load_quietly(topic))

    async def load_quietly(self, topic: str) -> None:
        """What cannot be loaded says so when it is asked for; it is tried again after some time."""
        try:
            await self._load(topic)
        except RequestError as error:
            self._load_later(topic, error)
        else:
            self._failures.pop(topic, None)

    def unloaded(self) -> dict[str, str]:
        """The topics that have subscriptions and not all of their queues, and why."""
        images = self._topics.image.topics
        topics = self._subscriptions.topics() & images.keys()
        waiting = [name for name in topics if name in self._failures or not self._partitions.is_loaded(images[name])]
        return {topic: self._failures.get(topic, "the state of its queues is being read") for topic in waiting}

    def stop(self) -> None:
        self._is_stopped = True
        for cancel in self._retries.values():
            cancel()

    def _load_later(self, topic: str, error: RequestError) -> None:
        if topic not in self._failures:
            log.warning("queues not loaded topic=%s reason=%s", topic, error)
        self._failures[topic] = error.message
        if topic not in self._retries and not self._is_stopped:
            self._retries[topic] = self._clock.call_later(_RETRY_MS, lambda: self._load_again(topic))

    def _load_again(self, topic: str) -> None:
        del self._retries[topic]
        if not self._subscriptions.all(topic):
            self._failures.pop(topic, None)
        self.begin(topic)
