"""Looks up topics, their partitions, and the offsets at their ends and at times."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from pyspark_conveyor.brokers.error_codes import LEADER_MOVED, ErrorCode, error_name
from pyspark_conveyor.brokers.raw_client import ConnectionFailedError, RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, Bounds, SourceOptions

TIMEOUT_S = 30.0
_RETRY_S = 0.1
_NO_SUCH_TIME = -1


class TopicFound(NamedTuple):
    """A topic of the cluster. topic_id: changes when a topic is deleted and created again; "" from old brokers."""

    topic_id: str
    partitions: tuple[int, ...]


@contextmanager
def raw_client(options: SourceOptions) -> Iterator[RawClient]:
    """Connect for planning. Raises PipelineError for invalid `kafka.*` options."""
    client = RawClient(options.bootstrap_servers, options.client)
    try:
        yield client
    finally:
        client.close()


def cluster_id(client: RawClient) -> str:
    """Return the id of the cluster. Raises PipelineError if no broker answers."""
    return str(client.metadata(()).cluster_id or "")


def find_topics(client: RawClient, options: SourceOptions) -> dict[str, TopicFound]:
    """Return the topics to read, in the order of the option. Raises PipelineError: no broker answers, or a topic does
    not exist, or none matches the pattern.
    """
    found = {}
    for topic in client.metadata(None if options.topic_pattern else options.topics).topics:
        if options.topic_pattern and not _matches(options.topic_pattern, topic.name):
            continue
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise PipelineError(f"topic '{topic.name}': {error_name(topic.error_code)}")
        if topic.error_code == 0:
            numbers = tuple(sorted(partition.partition_index for partition in topic.partitions))
            topic_id = topic.topic_id
            found[topic.name] = TopicFound(str(topic_id) if isinstance(topic_id, UUID) else "", numbers)
    if options.topic_pattern:
        if not found:
            raise PipelineError(f"no topic matches '{options.topic_pattern}': see 'conveyor topic list'")
        return dict(sorted(found.items()))
    unknown = [topic for topic in options.topics if topic not in found]
    if unknown:
        raise PipelineError(f"unknown topic '{unknown[0]}': see 'conveyor topic list'")
    return {topic: found[topic] for topic in options.topics}


def offsets_at(client: RawClient, options: SourceOptions, topics: Mapping[str, TopicFound], wanted: int) -> Bounds:
    """Return an offset of every partition. Raises PipelineError if a partition does not answer for 30 seconds.

    wanted: EARLIEST, LATEST (with read_committed the first offset of the oldest open transaction, if there is one), or
    a time in ms: the offset of the first record at or after it, or LATEST if there is none.
    """
    places = [(topic, number) for topic, found in topics.items() for number in found.partitions]
    answers: dict[tuple[str, int], int] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while missing := [place for place in places if place not in answers]:
        try:
            answers |= _list_offsets(client, missing, wanted, read_committed=options.read_committed)
        except ConnectionFailedError:
            client.forget_leaders()
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            topic, number = missing[0]
            raise PipelineError(f"partition {number} of '{topic}' does not answer")
        if any(place not in answers for place in missing):
            time.sleep(_RETRY_S)
    bounds: Bounds = {topic: {} for topic in topics}
    for topic, number in places:
        bounds[topic][number] = answers[topic, number]
    if wanted >= 0 and _NO_SUCH_TIME in answers.values():
        latest = offsets_at(client, options, topics, LATEST)
        return {
            topic: {number: latest[topic][number] if at == _NO_SUCH_TIME else at for number, at in offsets.items()}
            for topic, offsets in bounds.items()
        }
    return bounds


def resolve(
    client: RawClient,
    options: SourceOptions,
    topics: Mapping[str, TopicFound],
    wanted: int | Bounds,
    timestamp_ms: int | None,
    left_out: int = EARLIEST,
) -> Bounds:
    """Return the offsets that an option specifies by name, number or time.

    left_out: the offset of partitions that the option's JSON leaves out.
    Raises PipelineError if the JSON names a partition that does not exist.
    """
    if timestamp_ms is not None:
        return offsets_at(client, options, topics, timestamp_ms)
    if isinstance(wanted, int):
        return offsets_at(client, options, topics, wanted)
    check_named(wanted, topics)
    named = {name: offsets_at(client, options, topics, name) for name in (EARLIEST, LATEST)}
    bounds: Bounds = {}
    for topic, found in topics.items():
        for number in found.partitions:
            offset = wanted.get(topic, {}).get(number, left_out)
            bounds.setdefault(topic, {})[number] = named[offset][topic][number] if offset in named else offset
    return bounds


def _list_offsets(
    client: RawClient, places: list[tuple[str, int]], wanted: int, *, read_committed: bool
) -> dict[tuple[str, int], int]:
    """Ask the leaders. Returns the answers that have come; the others have moved. Raises PipelineError."""
    from kafka.protocol.consumer import ListOffsetsRequest

    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic, number in places:
        by_leader.setdefault(client.leader(topic, number), {}).setdefault(topic, []).append(number)
    kinds = ListOffsetsRequest.ListOffsetsTopic
    answers: dict[tuple[str, int], int] = {}
    for leader, topics in by_leader.items():
        asked = [
            kinds(
                name=topic,
                partitions=[
                    kinds.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=wanted)
                    for number in numbers
                ],
            )
            for topic, numbers in topics.items()
        ]
        response = client.ask(
            ListOffsetsRequest(replica_id=-1, isolation_level=int(read_committed), topics=asked, timeout_ms=30_000),
            leader,
        )
        for found in response.topics:
            for partition in found.partitions:
                if partition.error_code == 0:
                    answers[found.name, partition.partition_index] = partition.offset
                elif partition.error_code in LEADER_MOVED:
                    client.forget_leaders()
                else:
                    raise PipelineError(
                        f"partition {partition.partition_index} of '{found.name}': {error_name(partition.error_code)}"
                    )
    return answers


def _matches(pattern: str, topic: str) -> bool:
    return not topic.startswith("__") and re.fullmatch(pattern, topic) is not None


def check_named(wanted: Bounds, topics: Mapping[str, TopicFound]) -> None:
    """Raise PipelineError if an option's JSON names a partition that is not read."""
    for topic, numbers in wanted.items():
        for number in numbers:
            if topic not in topics or number not in topics[topic].partitions:
                raise PipelineError(
                    f"offsets are given for partition {number} of '{topic}', which does not exist or is not read"
                )
