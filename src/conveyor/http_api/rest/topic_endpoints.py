"""Topics: create, list, show, change, delete."""

from typing import Annotated

from msgspec import Meta, Struct

from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.topics.configs import as_text, topic_configs
from conveyor.cluster.image import TopicImage
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import BROKER_DEFAULT, MAX_NAME_CHARACTERS, TopicRequest
from conveyor.http_api.engine.endpoint import Endpoint, HttpCall, NoQuery

TopicName = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[a-zA-Z0-9._-]+$", examples=["orders"])
]
PartitionCount = Annotated[int, Meta(ge=1, le=100_000)]
ConfigValue = str | int | float | bool


class NewTopic(Struct, forbid_unknown_fields=True):
    """A new topic. `config`: settings by Kafka's names, such as `retention.ms`; missing ones have their defaults."""

    name: TopicName
    partitions: PartitionCount | None = None
    config: dict[str, ConfigValue] = {}


class TopicChange(Struct, forbid_unknown_fields=True):
    """Changes of a topic: its new number of partitions, and settings. null restores a setting's default."""

    partitions: PartitionCount | None = None
    config: dict[str, ConfigValue | None] = {}


class TopicDocument(Struct):
    """A topic. `config`: the settings of this topic."""

    name: str
    topic_id: str
    partitions: int
    internal: bool
    config: dict[str, str]


class PartitionDocument(Struct):
    """One partition: its leader, its first offset, and the offset up to which consumers can read."""

    partition: int
    leader: int
    log_start_offset: int
    high_watermark: int


class TopicDetails(TopicDocument):
    """A topic with every effective setting, its subscriptions and its partitions."""

    effective_config: dict[str, str]
    subscriptions: list[str]
    partition_states: list[PartitionDocument]


class TopicList(Struct):
    """Topics, sorted by name."""

    topics: list[TopicDocument]


class TopicsQuery(Struct, forbid_unknown_fields=True):
    """internal: include the broker's internal topics."""

    internal: bool = False


async def create_topic(call: HttpCall[NoQuery, NewTopic]) -> TopicDocument:
    """Create a topic."""
    body = call.body
    request = TopicRequest(
        name=body.name,
        partitions=BROKER_DEFAULT if body.partitions is None else body.partitions,
        config={name: as_text(value) for name, value in body.config.items()},
    )
    return _document(await call.broker.topics.create(request))


async def list_topics(call: HttpCall[TopicsQuery, None]) -> TopicList:
    """List the topics."""
    topics = call.broker.metadata.image.topics
    shown = [topics[name] for name in sorted(topics) if call.query.internal or not topics[name].is_internal]
    return TopicList([_document(topic) for topic in shown])


async def show_topic(call: HttpCall[NoQuery, None]) -> TopicDetails:
    """Show a topic with its settings, subscriptions and partitions."""
    topic = await call.broker.topics.served(call.names["topic"])
    return TopicDetails(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        internal=topic.is_internal,
        config=dict(topic.config),
        effective_config={
            config.name: config.value for config in topic_configs(topic, call.broker.dynamic_settings.layers)
        },
        subscriptions=[subscription.name for subscription in call.broker.subscriptions.all(topic.name)],
        partition_states=await _partitions(call, topic),
    )


async def change_topic(call: HttpCall[NoQuery, TopicChange]) -> TopicDocument:
    """Change a topic's settings or add partitions. Settings that are left out keep their values."""
    name, body, topics = call.names["topic"], call.body, call.broker.topics
    changes = [_change(name, value) for name, value in body.config.items()]
    await topics.change_config(name, changes, check_only=True)
    if body.partitions is not None and body.partitions != len(topics.existing(name).partitions):
        await topics.add_partitions(name, body.partitions, None)
    await topics.change_config(name, changes)
    return _document(topics.existing(name))


async def delete_topic(call: HttpCall[NoQuery, None]) -> None:
    """Delete a topic, its messages and its subscriptions."""
    await call.broker.topics.delete(call.names["topic"])


ENDPOINTS = (
    Endpoint(method="POST", path="/topics", function=create_topic, status=201, problems=(409,)),
    Endpoint(method="GET", path="/topics", function=list_topics),
    Endpoint(method="GET", path="/topics/{topic}", function=show_topic),
    Endpoint(method="PATCH", path="/topics/{topic}", function=change_topic),
    Endpoint(method="DELETE", path="/topics/{topic}", function=delete_topic, status=204),
)


def _change(name: str, value: ConfigValue | None) -> ConfigChange:
    if value is None:
        return ConfigChange(name=name, operation=Operation.DELETE)
    return ConfigChange(name=name, operation=Operation.SET, value=as_text(value))


def _document(topic: TopicImage) -> TopicDocument:
    return TopicDocument(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        internal=topic.is_internal,
        config=dict(topic.config),
    )


async def _partitions(call: HttpCall[NoQuery, None], topic: TopicImage) -> list[PartitionDocument]:
    """Return the partitions that are online."""
    table = call.broker.partitions
    numbers = [number for number in range(len(topic.partitions)) if table.offline_reason(topic.name, number) is None]
    served = {number: table.find(topic.name, number) for number in numbers}
    await wait_for_commits(served.values(), call.broker.clock)
    return [
        PartitionDocument(
            partition=number,
            leader=topic.partitions[number].leader,
            log_start_offset=partition.log.log_start_offset,
            high_watermark=partition.high_watermark,
        )
        for number, partition in served.items()
    ]
