"""Delayed messages by their id: shows a message that waits in an inbox, and cancels a message before it is due."""

import msgspec

from conveyor.broker.fetch.message_browser import unknown_message
from conveyor.broker.hosts.inboxes import Inboxes
from conveyor.broker.queues.message_targets import check_number, parse_place
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.topics.topics import Topics
from conveyor.queues.queue_commands import Cancel
from conveyor.records.message import Message, is_waiting_id, parse_waiting_id


class InboxPlace(msgspec.Struct, frozen=True, array_like=True):
    """The place of a message in the inbox of a partition."""

    topic: str
    number: int
    offset: int


_GET: Call[InboxPlace, Message | None] = Call("inbox.get", InboxPlace, Message | None, is_repeatable=True)
_CANCEL: Call[InboxPlace, None] = Call("inbox.cancel", InboxPlace, None, is_repeatable=True)


class DelayedMessages:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(self, topics: Topics, inboxes: Inboxes, calls: QueueCalls, leaders: LeaderCalls) -> None:
        self._topics = topics
        self._inboxes = inboxes
        self._calls = calls
        self._leaders = leaders
        leaders.handlers.register(_GET, self._get_here)
        leaders.handlers.register(_CANCEL, self._cancel_here)

    async def get(self, topic: str, waiting_id: str) -> Message:
        """Return a message that waits in the topic's inbox. Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE."""
        partition_count = len(self._topics.existing(topic).partitions)
        number, offset = parse_waiting_id(waiting_id)
        message = None
        if number < partition_count:
            message = await self._leaders.ask(_GET, topic, number, InboxPlace(topic, number, offset))
        if message is None:
            raise unknown_message(topic, waiting_id, "it does not wait any more: it is due, or was cancelled")
        return message

    async def cancel(self, topic: str, message_id: str) -> None:
        """Cancel a message that is not due yet: no subscription delivers it.

        A message that waits in an inbox never enters the topic; another one stays visible to stream consumers.
        """
        if is_waiting_id(message_id):
            self._topics.existing(topic)
            number, offset = parse_waiting_id(message_id)
            return await self._leaders.ask(_CANCEL, topic, number, InboxPlace(topic, number, offset))
        number, offset = parse_place(message_id)
        image = self._topics.existing(topic)
        check_number(number, len(image.partitions), topic)
        await self._calls.ask(topic, image.topic_id, number, Cancel(offset=offset))

    async def _get_here(self, place: "InboxPlace") -> Message | None:
        return await self._inboxes.get(place.topic, place.number, place.offset)

    async def _cancel_here(self, place: "InboxPlace") -> None:
        await self._inboxes.cancel(place.topic, place.number, place.offset)
