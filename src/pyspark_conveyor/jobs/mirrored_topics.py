"""Creates the target's topics as the source has them, and translates the positions of consumer groups."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.mirrored_offsets import MirroredPlace, translated_offset
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.group_progress import commit_progress
from pyspark_conveyor.source.source_options import Bounds, whole_topics
from pyspark_conveyor.source.topic_bounds import cluster_id, raw_client

_TIMEOUT_S = 30.0


def create_missing_topics(source: Brokers, target: Brokers, names: Mapping[str, str], *, may_create: bool) -> None:
    """Create the topics that the target lacks, with the partitions and the settings of the source.

    names: the target's topic for each of the source. may_create: whether none of them was there before. Raises
    PipelineError if a topic has another number of partitions, or was deleted.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    there, here = _admin(source), _admin(target)
    counts = {name: len(found.partitions) for name, found in there.list_topics(timeout=_TIMEOUT_S).topics.items()}
    existing = {name: len(found.partitions) for name, found in here.list_topics(timeout=_TIMEOUT_S).topics.items()}
    for name, copy in names.items():
        if existing.get(copy, counts[name]) != counts[name]:
            raise PipelineError(
                f"topic '{copy}' has {existing[copy]} partitions, and '{name}' has {counts[name]}: add partitions with"
                " 'conveyor topic alter', or choose another --prefix"
            )
    missing = [
        NewTopic(copy, counts[name], config=_settings(there, name))
        for name, copy in names.items()
        if copy not in existing
    ]
    if missing and not may_create:
        raise PipelineError(
            f"topic '{missing[0].topic}' is no longer in the target, and the checkpoint is beyond its first records:"
            " give another --checkpoint to copy it again"
        )
    try:
        for created in here.create_topics(missing).values() if missing else ():
            created.result(_TIMEOUT_S)
    except KafkaException as error:
        raise PipelineError(f"the target's topics cannot be created: {error.args[0].str()}") from error


def translate_groups(
    source: Brokers, target: Brokers, names: Mapping[str, str], groups: Sequence[str]
) -> dict[str, Bounds]:
    """Commit the positions that groups have in the source as positions in the target. Returns those that were.

    A position never goes back. Positions that the target does not have yet become its end. Raises PipelineError: a
    group has no positions, or has members in the target.
    """
    moved: dict[str, Bounds] = {}
    there, here = _admin(source), _admin(target)
    with raw_client(whole_topics(source, ())) as asked, raw_client(whole_topics(target, ())) as target_client:
        cluster = cluster_id(asked)
        for group in groups:
            positions = {place: offset for place, offset in _positions(there, group).items() if place[0] in names}
            if not positions:
                raise PipelineError(
                    f"group '{group}' has no positions in the mirrored topics: see 'conveyor group list'"
                )
            before = _positions(here, group)
            bounds: Bounds = {}
            for (topic, number), offset in positions.items():
                place = MirroredPlace(cluster, topic, number)
                translated = translated_offset(target_client, names[topic], place, offset)
                if translated > before.get((names[topic], number), -1):
                    bounds.setdefault(names[topic], {})[number] = translated
            if bounds:
                commit_progress(target_client, group, bounds)
            moved[group] = bounds
    return moved


def _admin(brokers: Brokers) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient(brokers.confluent | {"log_level": 0})


def _settings(admin: Any, topic: str) -> dict[str, str]:
    """Return the settings of a topic that were set for it."""
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(_TIMEOUT_S)
    return {
        name: entry.value
        for name, entry in entries.items()
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
    }


def _positions(admin: Any, group: str) -> dict[tuple[str, int], int]:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    asked = ConsumerGroupTopicPartitions(group)
    try:
        found = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(_TIMEOUT_S)
    except KafkaException as error:
        raise PipelineError(f"group '{group}': {error.args[0].str()}") from error
    return {(place.topic, place.partition): place.offset for place in found.topic_partitions if place.offset >= 0}
