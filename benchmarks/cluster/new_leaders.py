"""How long partitions are without a leader that acknowledges, asked without a client library, which adds pauses."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9.response import ProduceResponse

from benchmarks.wire import ask
from conveyor.records.record import encode_batch

_METADATA: Any = metadata_request
_PRODUCE: Any = produce_request
_PRODUCE_TIMEOUT = timedelta(seconds=30)
_PAUSE_S = 0.02
_AT_ONCE = 500

Leaders = dict[tuple[str, int], int]
"""The broker that leads each partition, by topic name and number; -1 for none."""


def leaders(address: str, topics: Iterable[str] | None = None) -> Leaders:
    """Return the leaders that a broker names, of all topics by default. Raises OSError."""
    names = (
        None if topics is None else tuple(_METADATA.MetadataRequestTopic(name=name, topic_id=None) for name in topics)
    )
    request = _METADATA.MetadataRequest(
        topics=names, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return {
        (topic.name, partition.partition_index): int(partition.leader_id)
        for topic in ask(address, request, MetadataResponse).topics
        for partition in topic.partitions
    }


def seconds_until_acknowledged(
    addresses: dict[int, str], topic: str, partitions: Collection[int], limit_s: int
) -> float:
    """Produce one record to each partition with acks=all until each of them is acknowledged.

    addresses: of the live brokers, by id. Raises RuntimeError after so many seconds.
    """
    began = time.perf_counter()
    missing = set(partitions)
    while missing:
        if time.perf_counter() - began > limit_s:
            raise RuntimeError(f"{len(missing)} of {len(partitions)} partitions acknowledge nothing")
        by_leader = defaultdict(list)
        for (_, number), leader in leaders(next(iter(addresses.values())), [topic]).items():
            if number in missing and leader in addresses:
                by_leader[leader].append(number)
        for leader, numbers in by_leader.items():
            for first in range(0, len(numbers), _AT_ONCE):
                missing -= _acknowledged(addresses[leader], topic, numbers[first : first + _AT_ONCE])
        if missing:
            time.sleep(_PAUSE_S)
    return time.perf_counter() - began


def _acknowledged(address: str, topic: str, partitions: list[int]) -> set[int]:
    batch = encode_batch([(time.time_ns() // 1_000_000, None, b"x", ())])
    data = tuple(_PRODUCE.PartitionProduceData(index=number, records=batch) for number in partitions)
    request = _PRODUCE.ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout=_PRODUCE_TIMEOUT,
        topic_data=(_PRODUCE.TopicProduceData(name=topic, partition_data=data),),
    )
    answered = ask(address, request, ProduceResponse).responses[0].partition_responses
    return {partition.index for partition in answered if int(partition.error_code) == 0}
