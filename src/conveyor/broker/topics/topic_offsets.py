"""The offsets of a topic's partitions, from the leader of each: one call to each other broker that leads some."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from conveyor.broker.answers import all_answered
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.kernel.ports import Clock
from conveyor.replication.partition import Partition

_TIMEOUT_MS = 5_000


class PartitionOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """log_start_offset: the first offset. high_watermark: the offset up to which consumers can read."""

    partition: int
    log_start_offset: int
    high_watermark: int


class OffsetsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a topic whose offsets are wanted."""

    topic: str
    partitions: list[int]


TOPIC_OFFSETS: Call[OffsetsWanted, list[PartitionOffsets]] = Call(
    "topic-offsets", OffsetsWanted, list[PartitionOffsets], is_repeatable=True
)


class TopicOffsets:
    def __init__(self, calls: LeaderCalls, partitions: PartitionTable, clock: Clock) -> None:
        self._calls = calls
        self._partitions = partitions
        self._clock = clock
        calls.handlers.register(TOPIC_OFFSETS, self._own)

    async def of(self, caller: Caller, topic: str, leaders: Mapping[int, NodeId]) -> dict[int, PartitionOffsets]:
        """Return the offsets of partitions, by their leaders. Partitions whose leader does not answer are left out.

        Raises RequestError (REQUEST_TIMED_OUT) if acknowledged records of this broker are not committed in time.
        """
        wanted: defaultdict[NodeId, list[int]] = defaultdict(list)
        for number, leader in leaders.items():
            wanted[leader].append(number)
        answers = await all_answered([self._ask(caller, leader, topic, numbers) for leader, numbers in wanted.items()])
        return {offsets.partition: offsets for answer in answers for offsets in answer}

    async def _ask(self, caller: Caller, leader: NodeId, topic: str, numbers: list[int]) -> Sequence[PartitionOffsets]:
        request = OffsetsWanted(topic=topic, partitions=numbers)
        if leader == self._calls.node_id:
            return await self._own(caller, request)
        try:
            return await self._calls.ask_node(caller, TOPIC_OFFSETS, leader, request, _TIMEOUT_MS)
        except (RequestError, PeerUnreachable):
            return ()

    async def _own(self, caller: Caller, request: OffsetsWanted) -> list[PartitionOffsets]:
        """Return the offsets of the partitions that this broker leads."""
        led = [number for number in request.partitions if self._leads(request.topic, number)]
        partitions = {number: self._partitions.find(request.topic, number) for number in led}
        await wait_for_commits(partitions.values(), self._clock)
        return [_offsets(number, partition) for number, partition in partitions.items()]

    def _leads(self, topic: str, number: int) -> bool:
        partition = self._partitions.get(topic, number)
        try:
            if partition is not None:
                partition.leading()
        except RequestError:
            return False
        return partition is not None


def _offsets(number: int, partition: Partition) -> PartitionOffsets:
    return PartitionOffsets(
        partition=number, log_start_offset=partition.log.log_start_offset, high_watermark=partition.term.high_watermark
    )
