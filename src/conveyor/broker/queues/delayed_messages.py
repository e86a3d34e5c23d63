"""Cancels a message before it is due: one that waits in a delayed topic, or that a topic's subscriptions withhold."""

import msgspec

from conveyor.broker.coordinators.forwarders import Forwarders
from conveyor.broker.queues.message_targets import check_number, parse_place
from conveyor.broker.queues.queue_calls import QueueCalls, QueuePlace
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.access.caller import Caller
from conveyor.queues.queue_commands import Cancel


class DelayedPlace(msgspec.Struct, frozen=True, array_like=True):
    """The place of a message in a delayed topic."""

    topic: str
    number: int
    offset: int


_CANCEL: Call[DelayedPlace, None] = Call("delayed.cancel", DelayedPlace, None, is_repeatable=False)


class DelayedMessages:
    def __init__(self, topics: Topics, forwarders: Forwarders, calls: QueueCalls, leaders: LeaderCalls) -> None:
        self._topics = topics
        self._forwarders = forwarders
        self._calls = calls
        self._leaders = leaders
        leaders.handlers.register(_CANCEL, self._cancel_here)

    async def cancel(self, caller: Caller, topic: str, message_id: str) -> None:
        """Cancel a message that is not due yet. In a delayed topic it is never forwarded; in any other topic no
        subscription delivers it. It stays visible to the readers of its topic.

        Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE, MESSAGE_NOT_DELAYED, those of the partition's leader.
        """
        number, offset = parse_place(message_id)
        image = self._topics.existing(topic)
        check_number(number, len(image.partitions), topic)
        if image.delay_target is not None:
            await self._leaders.ask(caller, _CANCEL, topic, number, DelayedPlace(topic, number, offset))
        else:
            await self._calls.ask(caller, QueuePlace(topic, image.topic_id, number), Cancel(offset=offset))

    async def _cancel_here(self, caller: Caller, place: "DelayedPlace") -> None:
        await self._forwarders.cancel(place.topic, place.number, place.offset)
