"""Delayed messages by their id: shows a message that waits in an inbox, and cancels a message before it is due."""

from conveyor.broker.fetch.message_browser import unknown_message
from conveyor.broker.hosts.inboxes import Inboxes
from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.queues.message_targets import parse_place, partition_by_number
from conveyor.broker.topics.topics import Topics
from conveyor.queues.queue_commands import Cancel
from conveyor.records.message import Message, is_waiting_id, parse_waiting_id


class DelayedMessages:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(self, topics: Topics, inboxes: Inboxes, partitions: QueuePartitions) -> None:
        self._topics = topics
        self._inboxes = inboxes
        self._partitions = partitions

    async def get(self, topic: str, waiting_id: str) -> Message:
        """Return a message that waits in the topic's inbox. Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE."""
        partition_count = len(self._topics.existing(topic).partitions)
        number, offset = parse_waiting_id(waiting_id)
        message = await self._inboxes.get(topic, number, offset) if number < partition_count else None
        if message is None:
            raise unknown_message(topic, waiting_id, "it does not wait any more: it is due, or was cancelled")
        return message

    async def cancel(self, topic: str, message_id: str) -> None:
        """Cancel a message that is not due yet: no subscription delivers it.

        A message that waits in an inbox never enters the topic; another one stays visible to stream consumers.
        """
        if is_waiting_id(message_id):
            self._topics.existing(topic)
            return await self._inboxes.cancel(topic, *parse_waiting_id(message_id))
        number, offset = parse_place(message_id)
        partition = partition_by_number(await self._partitions.load(topic), number, topic)
        await partition.ask(Cancel(offset=offset))
