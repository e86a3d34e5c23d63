"""Publishes batches at the leaders of their partitions: this broker or others.

A batch whose leader refuses it with NOT_LEADER, or cannot be reached, is sent once more when the image shows a newer
leader. A batch that may be stored already is not: it would be stored twice.

Batches of a transaction take the same way; the leader lets their partitions take part.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from conveyor.broker.answers import answered
from conveyor.broker.produce.acknowledgement import Finished, Published
from conveyor.broker.produce.publisher import Publisher
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import CALL_TIMEOUT_MS, LeaderCalls
from conveyor.broker.remote.remote import AnswerLost
from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import NO_LEADER, PartitionImage
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.records.checked_batch import CheckedBatch, check_broker_batch

_CALL_BYTES = 8 << 20
"""Batches for one broker are sent in calls of about this size."""


class PublishBatches(msgspec.Struct, frozen=True, array_like=True):
    """Publish batches of (partition, wire bytes) to one topic. For the rest: see `Publisher.publish`.

    transactional_id: of the producer in whose transaction the batches are; empty without a transaction.
    """

    topic: str
    batches: list[tuple[int, bytes]]
    acks: int
    deduplicates: bool
    transactional_id: str = ""


PUBLISH: Call[PublishBatches, list[Published]] = Call("publish", PublishBatches, list[Published], is_repeatable=False)

Batch = tuple[int, CheckedBatch]
"""A partition and a batch for it."""

Reply = Callable[[Sequence[Published] | RequestError], None]
"""Receives one result for each batch, in order."""


class _Request(msgspec.Struct, frozen=True):
    """The parts that all batches of a request have in common; see `PublishBatches`."""

    caller: Caller
    topic: str
    acks: int
    deduplicates: bool
    transactional_id: str


class LeaderPublisher:
    def __init__(self, tasks: Tasks, leaders: LeaderCalls, publisher: Publisher) -> None:
        self._tasks = tasks
        self._leaders = leaders
        self._publisher = publisher
        leaders.handlers.register(PUBLISH, self._answer)

    def publish(
        self,
        caller: Caller,
        topic: str,
        batches: Sequence[Batch],
        acks: int,
        reply: Reply,
        *,
        deduplicates: bool,
        transactional_id: str = "",
    ) -> None:
        """Publish batches. Only those that other brokers lead, or that have to be sent once more, need a task.

        Raises RequestError: UNKNOWN_TOPIC, INVALID_REQUIRED_ACKS.
        """
        request = _Request(caller, topic, acks, deduplicates, transactional_id)
        partitions = [self._leaders.partition(topic, number) for number, _ in batches]
        if any(partition.leader != self._leaders.node_id for partition in partitions):
            return self._tasks.answer(self._publish_anywhere(request, batches, partitions), reply)

        def published(results: Sequence[Published]) -> None:
            if any(map(_is_unserved, results)):
                self._tasks.answer(self._publish_again(request, batches, partitions, results), reply)
            else:
                reply(results)

        self._publish_here(request, batches, published)

    async def _publish_anywhere(
        self, request: _Request, batches: Sequence[Batch], partitions: Sequence[PartitionImage]
    ) -> Sequence[Published]:
        results = await self._publish_once(request, batches, partitions)
        return await self._publish_again(request, batches, partitions, results)

    async def _publish_again(
        self,
        request: _Request,
        batches: Sequence[Batch],
        before: Sequence[PartitionImage],
        results: Sequence[Published],
    ) -> Sequence[Published]:
        """Publish the unserved batches once more. before: the partition of each batch when it was sent."""
        unserved = {index for index, result in enumerate(results) if _is_unserved(result)}
        if not unserved:
            return results
        topic = request.topic
        for number, partition in {batches[index][0]: before[index] for index in unserved}.items():
            await self._leaders.newer_leader(topic, number, partition)
        rest = [batches[index] for index in sorted(unserved)]
        newer = [self._leaders.partition(topic, number) for number, _ in rest]
        again = iter(await self._publish_once(request, rest, newer))
        return [next(again) if index in unserved else result for index, result in enumerate(results)]

    async def _publish_once(
        self, request: _Request, batches: Sequence[Batch], partitions: Sequence[PartitionImage]
    ) -> list[Published]:
        """partitions: the partition of each batch in the newest image."""
        by_leader: dict[NodeId, list[int]] = {}
        for index, partition in enumerate(partitions):
            by_leader.setdefault(partition.leader, []).append(index)
        groups = [(leader, [batches[index] for index in indexes]) for leader, indexes in by_leader.items()]
        answers = await asyncio.gather(*(self._publish_at(leader, request, group) for leader, group in groups))
        results: list[Published] = [Published() for _ in batches]
        for indexes, answer in zip(by_leader.values(), answers, strict=True):
            for index, result in zip(indexes, answer, strict=True):
                results[index] = result
        return results

    def _publish_here(self, request: _Request, batches: Sequence[Batch], published: Finished) -> None:
        self._publisher.publish(
            request.caller,
            [(request.topic, number, batch) for number, batch in batches],
            request.acks,
            published,
            deduplicates=request.deduplicates,
            transactional_id=request.transactional_id or None,
            adds=True,
        )

    async def _published_here(self, request: _Request, batches: Sequence[Batch]) -> list[Published]:
        return list(await answered(partial(self._publish_here, request, batches)))

    async def _publish_at(self, leader: NodeId, request: _Request, batches: Sequence[Batch]) -> list[Published]:
        if leader == self._leaders.node_id:
            return await self._published_here(request, batches)
        results: list[Published] = []
        for portion in _portions(batches):
            unserved = next(filter(_is_unserved, results), None)
            if unserved is not None:  # They must not overtake the batches that are to be sent once more.
                results += [Published(error=unserved.error) for _ in portion]
                continue
            try:
                results += await self._send(leader, request, portion)
            except RequestError as error:
                refusal = error.detached()
                results += [Published(error=refusal, may_be_stored=_may_be_stored(refusal)) for _ in portion]
        return results

    async def _send(self, leader: NodeId, request: _Request, batches: Sequence[Batch]) -> list[Published]:
        """Raise RequestError: also NotLeader if the leader is unknown or cannot be reached."""
        topic = request.topic
        epoch = self._leaders.partition(topic, batches[0][0]).leader_epoch
        if leader == NO_LEADER:
            raise NotLeader(f"no broker leads {topic}-{batches[0][0]} at the moment", None, epoch)
        call = PublishBatches(
            topic,
            [(number, bytes(batch.content)) for number, batch in batches],
            request.acks,
            request.deduplicates,
            request.transactional_id,
        )
        try:
            results = await self._leaders.ask_node(request.caller, PUBLISH, leader, call, CALL_TIMEOUT_MS)
        except AnswerLost as failure:
            message = f"topic '{topic}': {failure}; the messages may have been published"
            raise RequestError(ErrorKind.REQUEST_TIMED_OUT, message) from failure
        except PeerUnreachable as failure:
            raise NotLeader(
                f"the leader of {topic}-{batches[0][0]} cannot be reached: {failure}", leader, epoch
            ) from failure
        if len(results) != len(batches):
            raise RequestError(ErrorKind.UNSUPPORTED_VERSION, f"broker {leader} has answered for other batches")
        return results

    async def _answer(self, caller: Caller, call: PublishBatches) -> list[Published]:
        request = _Request(caller, call.topic, call.acks, call.deduplicates, call.transactional_id)
        check = partial(check_broker_batch, is_transactional=bool(request.transactional_id))
        return await self._published_here(request, [(number, check(content)) for number, content in call.batches])


def _is_unserved(result: Published) -> bool:
    return isinstance(result.error, NotLeader) and not result.may_be_stored


def _may_be_stored(error: RequestError) -> bool:
    """Return whether batches may be stored although the whole call failed."""
    return not isinstance(error, NotLeader) and error.kind is not ErrorKind.MESSAGE_TOO_LARGE


def _portions(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    portion: list[Batch] = []
    size_bytes = 0
    for batch in batches:
        if portion and size_bytes + len(batch[1].content) > _CALL_BYTES:
            yield portion
            portion, size_bytes = [], 0
        portion.append(batch)
        size_bytes += len(batch[1].content)
    yield portion
