"""Asks for the consumers of topics: groups over the Kafka protocol, subscriptions over REST."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers, DelayHistogram
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, whole_topics
from pyspark_conveyor.source.topic_bounds import find_topics, offsets_at, raw_client

_TIMEOUT_S = 30.0


def group_numbers(brokers: Brokers, topics: Sequence[str], at: datetime) -> Iterator[ConsumerNumbers]:
    """Yield the lag of each group that has committed offsets of a topic. Raises PipelineError.

    Partitions without a committed offset do not count.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
    from confluent_kafka.admin import AdminClient

    options = whole_topics(brokers, topics)
    admin = AdminClient(brokers.confluent | {"log_level": 0})
    try:
        groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=_TIMEOUT_S).result().valid]
        committed = {}
        for group in groups:
            asked = [ConsumerGroupTopicPartitions(group)]
            committed[group] = admin.list_consumer_group_offsets(asked, request_timeout=_TIMEOUT_S)[group].result()
    except KafkaException as error:
        raise PipelineError(f"the consumer groups cannot be listed: {error.args[0].str()}") from error
    with raw_client(options) as client:
        found = find_topics(client, options)
        starts, ends = (offsets_at(client, options, found, wanted) for wanted in (EARLIEST, LATEST))
    for group, offsets in committed.items():
        lags: dict[str, int] = {}
        for place in offsets.topic_partitions:
            end = ends.get(place.topic, {}).get(place.partition)
            if end is not None and place.offset >= 0:
                behind = end - max(place.offset, starts[place.topic][place.partition])
                lags[place.topic] = lags.get(place.topic, 0) + max(0, behind)
        for topic, lag in lags.items():
            yield ConsumerNumbers(at=at, topic=topic, consumer=group, kind="group", lag=lag)


def subscription_numbers(get: Callable[[str], Any], topics: Sequence[str], at: datetime) -> Iterator[ConsumerNumbers]:
    """Yield the numbers of each subscription of the topics. get: asks the REST API for the document at a path."""
    for topic in topics:
        listed = get(f"/topics/{quote(topic, safe='')}/subscriptions")["subscriptions"]
        for name in (each["name"] for each in listed):
            found = get(f"/subscriptions/{quote(name, safe='')}")
            yield ConsumerNumbers(
                at=at,
                topic=topic,
                consumer=name,
                kind="subscription",
                lag=found["unsettled"],
                oldest_age_ms=found["oldest_age_ms"],
                in_flight=found["in_flight"],
                acknowledged=found["acked"],
                retried=found["retried"],
                ack_rate=found["ack_rate"],
                retry_rate=found["retry_rate"],
                ack_delays=_histogram(found["id"], found["ack_delay"]),
            )


def _histogram(subscription_id: str, shown: dict[str, Any]) -> DelayHistogram:
    buckets = shown["buckets"]
    bounds_ms = [bucket["up_to_ms"] for bucket in buckets if bucket["up_to_ms"] is not None]
    return DelayHistogram(subscription_id, bounds_ms, [bucket["count"] for bucket in buckets], float(shown["sum_ms"]))
