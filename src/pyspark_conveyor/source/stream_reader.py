"""Reads topics as a stream."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_conveyor.brokers.kept_client import kept_client
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.plain_errors import with_plain_errors
from pyspark_conveyor.source.group_progress import commit_progress
from pyspark_conveyor.source.offset_ranges import OffsetRange, check_loss, plan_ranges, read_range
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, Bounds, SourceOptions
from pyspark_conveyor.source.stream_offsets import StreamOffset, from_stored, limited, to_stored
from pyspark_conveyor.source.topic_bounds import TopicFound, find_topics, offsets_at, resolve

if TYPE_CHECKING:
    import pyarrow as pa


@with_plain_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads records as they are appended.

    Spark asks for the next offsets once it has committed the batch before. So that is when the progress is committed to
    the consumer group: Spark does not report the end of the last batch otherwise.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._goal: tuple[Bounds, dict[str, str]] | None = None
        self._committed: Bounds | None = None

    def initialOffset(self) -> StreamOffset:  # noqa: N802 - Spark's name
        options = self._options
        with kept_client(options.bootstrap_servers, options.client) as client:
            topics = find_topics(client, options)
            bounds = resolve(client, options, topics, options.starting_offsets, options.starting_timestamp_ms)
            return to_stored(bounds, _ids(topics))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with kept_client(self._options.bootstrap_servers, self._options.client) as client:
            topics = find_topics(client, self._options)
            self._goal = offsets_at(client, self._options, topics, LATEST), _ids(topics)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802 - Spark's name
        begin, known_ids = from_stored(start)
        with kept_client(self._options.bootstrap_servers, self._options.client) as client:
            topics = find_topics(client, self._options)
            self._report(client, {topic: begin[topic] for topic in begin if _is_known(topic, topics, known_ids)})
            begin = self._begin(client, topics, begin, known_ids)
            end = self._goal_of(topics, begin) or offsets_at(client, self._options, topics, LATEST)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_stored(limited(begin, end, most), _ids(topics))

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        (begin, start_ids), (stop, end_ids) = from_stored(start), from_stored(end)
        with kept_client(self._options.bootstrap_servers, self._options.client) as client:
            topics = find_topics(client, self._options)
            begin = self._begin(client, topics, begin, start_ids)
            for topic in list(stop):
                if topic not in topics or end_ids.get(topic, topics[topic].topic_id) != topics[topic].topic_id:
                    check_loss(self._options, f"topic '{topic}' was deleted or recreated before its records were read")
                    del stop[topic]
            return plan_ranges(client, self._options, topics, begin, stop)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_range(self._options, partition)

    def commit(self, end: StreamOffset) -> None:
        """Nothing to do: Spark's checkpoint stores the offsets."""

    def _goal_of(self, topics: Mapping[str, TopicFound], begin: Bounds) -> Bounds | None:
        """Return where a query that reads what there is now ends; None for one that goes on. A topic that was recreated
        since then is not read.
        """
        if self._goal is None:
            return None
        bounds, ids = self._goal
        known = {topic: numbers for topic, numbers in bounds.items() if topic in topics}
        return {
            topic: numbers if ids[topic] == topics[topic].topic_id else begin[topic] for topic, numbers in known.items()
        }

    def _begin(
        self, client: RawClient, topics: Mapping[str, TopicFound], begin: Bounds, known_ids: Mapping[str, str]
    ) -> Bounds:
        """Return where the topics of today go on: at their first record if they are new. Raises DataLossError."""
        first = offsets_at(client, self._options, topics, EARLIEST)
        for topic in set(begin) - set(topics):
            check_loss(self._options, f"topic '{topic}' of the checkpoint was deleted, or is not read any more")
        for topic in topics:
            if topic in begin and not _is_known(topic, topics, known_ids):
                check_loss(self._options, f"topic '{topic}' was recreated, and records of the old one may be lost")
                begin = begin | {topic: {}}
        return {topic: offsets | begin.get(topic, {}) for topic, offsets in first.items()}

    def _report(self, client: RawClient, done: Bounds) -> None:
        if self._options.group is not None and done != self._committed:
            commit_progress(client, self._options.group, done)
            self._committed = done


def _is_known(topic: str, topics: Mapping[str, TopicFound], known_ids: Mapping[str, str]) -> bool:
    """Return whether a topic of the checkpoint is still there, and not another one of that name."""
    return topic in topics and known_ids.get(topic, topics[topic].topic_id) == topics[topic].topic_id


def _ids(topics: Mapping[str, TopicFound]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items()}
