"""Topics: create, list, show, change, delete."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from conveyor.broker.topics.configs import topic_configs
from conveyor.broker.topics.partition_leader import ShownLeader
from conveyor.broker.topics.topic_offsets import PartitionOffsets
from conveyor.cluster.image import NO_LEADER, PartitionImage, TopicImage
from conveyor.cluster.quotas import CONTROLLER_MUTATION_RATE
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import BROKER_DEFAULT, MAX_NAME_CHARACTERS, TopicRequest
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import (
    ALTER,
    ALTER_CONFIGS,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    WRITE,
    any_of,
    cluster,
    group,
    topic,
)
from conveyor.settings.setting import as_text

TopicName = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[a-zA-Z0-9._-]+$", examples=["orders"])
]
PartitionCount = Annotated[int, Meta(ge=1, le=100_000)]
ReplicaCount = Annotated[int, Meta(ge=1, le=32_767)]
ConfigValue = str | int | float | bool
_FEW_SETTINGS = Meta(max_length=1_000)
"""More than topics have. It is checked before all other work on the settings, which blocks other clients."""


class NewTopic(Struct, forbid_unknown_fields=True):
    """A new topic. `config`: settings by Kafka's names, such as `retention.ms`; missing ones have their defaults.

    replicas: brokers that hold each partition; by default `broker.default_replication_factor`.
    """

    name: TopicName
    partitions: PartitionCount | None = None
    replicas: ReplicaCount | None = None
    config: Annotated[dict[str, ConfigValue], _FEW_SETTINGS] = {}


class TopicChange(Struct, forbid_unknown_fields=True):
    """Changes of a topic: its new number of partitions, and settings. null restores a setting's default."""

    partitions: PartitionCount | None = None
    config: Annotated[dict[str, ConfigValue | None], _FEW_SETTINGS] = {}


class TopicDocument(Struct, kw_only=True):
    """A topic. `config`: the settings of this topic; left out of a list for clients that may not see them."""

    name: str
    topic_id: str
    partitions: int
    internal: bool
    config: dict[str, str] | UnsetType = UNSET


class PartitionDocument(Struct):
    """One partition.

    leader: the id of a broker; null if none leads the partition now. log_start_offset: the first offset.
    high_watermark: the offset up to which consumers can read. Both are null if the leader does not answer.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync_replicas: list[int]
    offline_replicas: list[int]
    log_start_offset: int | None
    high_watermark: int | None


class TopicDetails(TopicDocument, kw_only=True):
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
        replication_factor=BROKER_DEFAULT if body.replicas is None else body.replicas,
        config={name: as_text(value) for name, value in body.config.items()},
    )
    if call.exchange.meter is not None:
        call.exchange.meter.mutated(call.broker.topics.check(request).partition_count)
    return _document(await call.broker.topics.create(call.caller, request))


async def list_topics(call: HttpCall[TopicsQuery, None]) -> TopicList:
    """List the topics."""
    topics = call.broker.metadata.image.topics
    found = [topics[name] for name in sorted(topics) if call.query.internal or not topics[name].is_internal]
    shown = await call.permitted(DESCRIBE, ResourceType.TOPIC, found)
    with_config = {topic.name for topic in await call.permitted(DESCRIBE_CONFIGS, ResourceType.TOPIC, shown)}
    documents = [_document(topic) for topic in shown]
    for document in documents:
        if document.name not in with_config:
            document.config = UNSET
    return TopicList(documents)


async def show_topic(call: HttpCall[NoQuery, None]) -> TopicDetails:
    """Show a topic with its settings, subscriptions and partitions."""
    topic = await call.broker.topics.served(call.names["topic"])
    subscriptions = call.broker.cluster.subscriptions.all(topic.name)
    return TopicDetails(
        **asdict(_document(topic)),
        effective_config={
            config.name: config.value
            for config in topic_configs(topic.config, call.broker.cluster.dynamic_settings.layers)
        },
        subscriptions=[each.name for each in await call.permitted(DESCRIBE, ResourceType.GROUP, subscriptions)],
        partition_states=await _partitions(call, topic),
    )


async def change_topic(call: HttpCall[NoQuery, TopicChange]) -> TopicDocument:
    """Change a topic's settings or add partitions. Settings that are left out keep their values."""
    name, body, topics = call.names["topic"], call.body, call.broker.topics
    changes = [_change(name, value) for name, value in body.config.items()]
    await topics.change_config(call.caller, name, changes, check_only=True)
    if body.partitions is not None and body.partitions != len(topics.existing(name).partitions):
        if call.exchange.meter is not None:
            topics.check_partitions(name, body.partitions, None)
            call.exchange.meter.mutated(body.partitions - len(topics.existing(name).partitions))
        await topics.add_partitions(call.caller, name, body.partitions, None)
    await topics.change_config(call.caller, name, changes)
    return _document(topics.existing(name))


async def delete_topic(call: HttpCall[NoQuery, None]) -> None:
    """Delete a topic, its messages and its subscriptions."""
    name, topics = call.names["topic"], call.broker.topics
    if call.exchange.meter is not None:
        call.exchange.meter.mutated(len(topics.existing(name).partitions))
    await topics.delete(call.caller, name)


_DELAY_TARGET = topic(WRITE, "body.config.delay.target")
"""The broker appends the delayed messages there."""
_SHOW = (topic(DESCRIBE, "topic"), topic(DESCRIBE_CONFIGS, "topic"), group(DESCRIBE))

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/topics",
        needs=(any_of(cluster(CREATE), topic(CREATE, "body.name")), _DELAY_TARGET),
        function=create_topic,
        status=201,
        problems=(409,),
        quotas=(CONTROLLER_MUTATION_RATE,),
    ),
    Endpoint(method="GET", path="/topics", needs=(topic(DESCRIBE), topic(DESCRIBE_CONFIGS)), function=list_topics),
    Endpoint(method="GET", path="/topics/{topic}", needs=_SHOW, function=show_topic),
    Endpoint(
        method="PATCH",
        path="/topics/{topic}",
        needs=(topic(ALTER, "topic"), topic(ALTER_CONFIGS, "topic")),
        function=change_topic,
    ),
    Endpoint(
        method="DELETE",
        path="/topics/{topic}",
        needs=(topic(DELETE, "topic"),),
        function=delete_topic,
        status=204,
        quotas=(CONTROLLER_MUTATION_RATE,),
    ),
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
    shown = [
        call.broker.topics.leaders.shown(topic.name, number, partition)
        for number, partition in enumerate(topic.partitions)
    ]
    leaders = {number: leader for number, (leader, _) in enumerate(shown) if leader != NO_LEADER}
    offsets = await call.broker.topics.offsets.of(call.caller, topic.name, leaders)
    return [
        _partition_document(number, partition, shown[number], offsets.get(number))
        for number, partition in enumerate(topic.partitions)
    ]


def _partition_document(
    number: int, image: PartitionImage, shown: ShownLeader, offsets: PartitionOffsets | None
) -> PartitionDocument:
    return PartitionDocument(
        partition=number,
        leader=None if shown.leader == NO_LEADER else shown.leader,
        leader_epoch=image.leader_epoch,
        replicas=list(image.replicas),
        in_sync_replicas=list(image.isr),
        offline_replicas=list(shown.offline_replicas),
        log_start_offset=None if offsets is None else offsets.log_start_offset,
        high_watermark=None if offsets is None else offsets.high_watermark,
    )
