"""All settings, as one frozen tree. Flags, environment, conveyor.toml, DescribeConfigs and the docs are made from it.

Every field has a default, a unit, a sentence and, where Kafka has the same thing, Kafka's name. A value is checked
when the tree is made; relations between values are checked by `check_relations`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import parse, setting
from conveyor.settings.topic_settings import TopicSettings, topic_setting_fields, topic_setting_name, topic_settings

__all__ = [
    "BrokerSettings",
    "ClientSettings",
    "DiskSettings",
    "GroupsSettings",
    "NetworkSettings",
    "ProducerSettings",
    "Settings",
    "TopicSettings",
    "check_relations",
    "from_sources",
    "topic_setting_fields",
    "topic_setting_name",
    "topic_settings",
    "with_values",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What holds for the whole broker."""

    data_dir: str = setting("./conveyor-data", "Where records and metadata are kept.", kafka="log.dirs")
    log_level: str = setting(
        "info", "What is written to standard error.", choices=("debug", "info", "warning", "error"), live=True
    )
    node_id: int = setting(1, "This broker's number, unique in its cluster.", kafka="node.id", low=0)
    rack: str = setting("", "Where this broker stands, for replica placement.", kafka="broker.rack")
    auto_create_topics: bool = setting(
        True, "Make a topic when a client asks for one that is not there.", kafka="auto.create.topics.enable", live=True
    )
    num_partitions: int = setting(
        1,
        "Partitions of a topic that does not say.",
        unit="partitions",
        kafka="num.partitions",
        low=1,
        high=100_000,
        live=True,
    )
    max_partitions: int = setting(
        20_000, "Partitions that this broker holds at most, all topics together.", unit="partitions", low=1, live=True
    )
    flush_threads: int = setting(
        4, "Threads for fsyncs that the kernel does not queue.", unit="threads", low=1, high=64
    )
    retention_check_ms: int = setting(
        300_000,
        "How often partitions are looked over for records to delete.",
        unit="ms",
        kafka="log.retention.check.interval.ms",
        low=1,
        live=True,
    )
    compaction_check_ms: int = setting(
        15_000,
        "How often compacted topics are looked over for work.",
        unit="ms",
        kafka="log.cleaner.backoff.ms",
        low=1,
        live=True,
    )
    compaction_max_keys: int = setting(
        1_000_000,
        "Distinct keys that one compaction remembers, about 150 bytes each in a process of its own; what is beyond"
        " waits for the next.",
        unit="keys",
        low=1,
        live=True,
    )
    dedup_max_ids: int = setting(
        1_000_000,
        "Ids of messages remembered for one partition, about 250 bytes each; the longest known goes first.",
        unit="ids",
        low=1,
    )
    remembered_acks: int = setting(
        500_000,
        "Acks of exactly-once subscriptions that all queues together remember, about 170 bytes each, so that an ack may"
        " be repeated; above it the queue that remembers the most forgets its oldest.",
        unit="acks",
        low=1,
    )
    queue_cache_bytes: int = setting(
        256 << 20,
        "Memory for batches that queues have read, shared equally by the partitions with subscriptions or inboxes; each"
        " keeps its last batch all the same.",
        unit="bytes",
        low=0,
    )
    open_segment_files: int = setting(
        0, "Files kept open at most; 0 takes half of what the system allows.", unit="files", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """How clients are listened to, and what one of them may take."""

    kafka: str = setting("127.0.0.1:9092", "Where Kafka clients connect; port 0 picks a free one.", unit="host:port")
    http: str = setting("127.0.0.1:8080", "Where HTTP clients connect; port 0 picks a free one.", unit="host:port")
    advertised: str = setting(
        "",
        "The address told to Kafka clients; by default the one that they can reach by `kafka`.",
        unit="host:port",
        kafka="advertised.listeners",
    )
    insecure: bool = setting(False, "Allow a listener that is not on loopback, though nothing is authenticated.")
    token_file: str = setting(
        "",
        "A file of bearer tokens, one a line, of which HTTP clients have to bring one; by default none is asked for.",
    )
    max_request_bytes: int = setting(
        104_857_600, "The largest request taken.", unit="bytes", kafka="socket.request.max.bytes", low=1024
    )
    max_connections: int = setting(10_000, "Connections open at once.", kafka="max.connections", low=1)
    max_http_connections: int = setting(
        1_000,
        "HTTP connections open at once, besides those of Kafka clients; `/healthz`, `/readyz` and `/metrics` are"
        " answered beyond them.",
        unit="connections",
        low=1,
    )
    max_idle_ms: int = setting(
        600_000,
        "A connection with no finished request for this long is closed.",
        unit="ms",
        kafka="connections.max.idle.ms",
        low=1,
    )
    max_receive_ms: int = setting(
        60_000,
        "A request, or the body of one, has to be whole so long after it has begun to arrive; else its connection is"
        " closed.",
        unit="ms",
        low=1,
    )
    drain_timeout_ms: int = setting(
        10_000, "How long a broker that stops waits for clients to read the answers that it owes.", unit="ms", low=0
    )
    max_buffered_bytes: int = setting(
        268_435_456,
        "Bytes of requests being received or worked on, Kafka and HTTP together. A request above 512 KiB waits for its"
        " turn to be read; when small ones alone take this much, the connection with most of them is closed.",
        unit="bytes",
        kafka="queued.max.request.bytes",
        low=1 << 20,
    )
    max_in_flight: int = setting(
        1_000, "Requests of one connection that may wait for their answer at once.", unit="requests", low=1
    )
    max_fetch_sessions: int = setting(
        1_000,
        "Incremental fetch sessions kept for consumers; a consumer without one sends its whole list each time.",
        unit="sessions",
        kafka="max.incremental.fetch.session.cache.slots",
        low=0,
    )
    max_fetch_bytes: int = setting(
        57_671_680, "The largest answer to one fetch.", unit="bytes", kafka="fetch.max.bytes", low=1024
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsSettings:
    """Consumer groups."""

    offsets_partitions: int = setting(
        8,
        "Partitions of the topic that holds committed offsets.",
        unit="partitions",
        kafka="offsets.topic.num.partitions",
        low=1,
        high=1000,
    )
    initial_rebalance_delay_ms: int = setting(
        0,
        "How long the first rebalance of an empty group waits for more members.",
        unit="ms",
        kafka="group.initial.rebalance.delay.ms",
        low=0,
        live=True,
    )
    min_session_timeout_ms: int = setting(
        6_000,
        "The shortest session timeout that a member may ask for.",
        unit="ms",
        kafka="group.min.session.timeout.ms",
        low=1,
        live=True,
    )
    max_session_timeout_ms: int = setting(
        1_800_000,
        "The longest session timeout that a member may ask for.",
        unit="ms",
        kafka="group.max.session.timeout.ms",
        low=1,
        live=True,
    )
    max_size: int = setting(
        10_000,
        "Members of one group of the classic protocol.",
        unit="members",
        kafka="group.max.size",
        low=1,
        live=True,
    )
    consumer_session_timeout_ms: int = setting(
        45_000,
        "A member of the consumer protocol (KIP-848) that is silent for this long is taken out of its group.",
        unit="ms",
        kafka="group.consumer.session.timeout.ms",
        low=1,
        live=True,
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000,
        "How often members of the consumer protocol are asked to give a sign of life.",
        unit="ms",
        kafka="group.consumer.heartbeat.interval.ms",
        low=1,
        live=True,
    )
    consumer_max_size: int = setting(
        10_000,
        "Members of one group of the consumer protocol.",
        unit="members",
        kafka="group.consumer.max.size",
        low=1,
        live=True,
    )
    consumer_assignors: str = setting(
        "uniform,range",
        "How partitions may be shared out in groups of the consumer protocol; the first is taken if nobody asks.",
        kafka="group.consumer.assignors",
        choices=("uniform", "range"),
        several=True,
    )
    consumer_migration_policy: str = setting(
        "bidirectional",
        "Whether living groups may go from the classic to the consumer protocol (`upgrade`), back, or both.",
        kafka="group.consumer.migration.policy",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        live=True,
    )
    member_metadata_max_bytes: int = setting(
        4_194_304,
        "What a member of the classic protocol may say of its subscriptions, all its assignors together.",
        unit="bytes",
        low=1024,
        live=True,
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        "The longest note that may be committed with an offset.",
        unit="bytes",
        kafka="offset.metadata.max.bytes",
        low=0,
        live=True,
    )
    offsets_retention_ms: int = setting(
        7 * 24 * 3_600_000, "Committed offsets of an empty group are forgotten after this.", unit="ms", low=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Idempotent producers."""

    producer_id_expiration_ms: int = setting(
        86_400_000,
        "A producer that was silent this long is forgotten.",
        unit="ms",
        kafka="producer.id.expiration.ms",
        low=1,
    )
    max_producers_per_partition: int = setting(
        50_000, "Producers remembered for one partition; the longest silent goes first.", unit="producers", low=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How the rates of clients are measured for their quotas."""

    quota_window_count: int = setting(
        11, "Windows that a client's rate is measured over.", unit="windows", kafka="quota.window.num", low=2, live=True
    )
    quota_window_seconds: int = setting(
        1, "How long one of these windows is.", unit="seconds", kafka="quota.window.size.seconds", low=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """The room that records may take on the disk."""

    min_free_bytes: int = setting(
        -1,
        "Producers are refused while the disk has less room than this; -1 takes a twentieth of it, at most 100 MiB.",
        unit="bytes",
        low=-1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole tree. In conveyor.toml a section is a table, in the environment CONVEYOR_<SECTION>_<NAME>."""

    broker: BrokerSettings = field(default_factory=BrokerSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    disk: DiskSettings = field(default_factory=DiskSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    groups: GroupsSettings = field(default_factory=GroupsSettings)
    producers: ProducerSettings = field(default_factory=ProducerSettings)
    clients: ClientSettings = field(default_factory=ClientSettings)


def from_sources(*sources: Mapping[str, object]) -> Settings:
    """Build the tree from flat maps `section.name` -> value, the first map that has a name wins.

    Raises SettingsError for an unknown name, a wrong type, or a value out of range.
    """
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged.update(source)
    return with_values(Settings(), merged)


def with_values(settings: Settings, given: Mapping[str, object]) -> Settings:
    """The tree with some values, by `section.name`, in place of its own. Raises SettingsError, as `from_sources`."""
    sections: dict[str, dict[str, object]] = {}
    for name, value in given.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    for section, values in sections.items():
        if section not in {each.name for each in fields(Settings)}:
            raise SettingsError(f"unknown setting '{_joined(section, values)}': {_known_names(section)}")
        settings = replace(settings, **{section: _fill(getattr(settings, section), section, values)})
    check_relations(settings)
    return settings


def check_relations(settings: Settings) -> None:
    """Check what must hold between settings. Raises SettingsError naming both."""
    groups, network, topics = settings.groups, settings.network, settings.topics
    if groups.min_session_timeout_ms > groups.max_session_timeout_ms:
        raise SettingsError(
            f"groups.min_session_timeout_ms ({groups.min_session_timeout_ms}) is above"
            f" groups.max_session_timeout_ms ({groups.max_session_timeout_ms}): lower the first or raise the second"
        )
    if groups.consumer_heartbeat_interval_ms >= groups.consumer_session_timeout_ms:
        raise SettingsError(
            f"groups.consumer_heartbeat_interval_ms ({groups.consumer_heartbeat_interval_ms}) is not below"
            f" groups.consumer_session_timeout_ms ({groups.consumer_session_timeout_ms}): lower the first"
        )
    if topics.max_message_bytes > network.max_request_bytes:
        raise SettingsError(
            f"topics.max_message_bytes ({topics.max_message_bytes}) is above network.max_request_bytes"
            f" ({network.max_request_bytes}): no request could carry such a batch; raise the second"
        )
    if network.max_request_bytes > network.max_buffered_bytes:
        raise SettingsError(
            f"network.max_request_bytes ({network.max_request_bytes}) is above network.max_buffered_bytes"
            f" ({network.max_buffered_bytes}): raise the second"
        )


def _fill(section: Any, name: str, values: Mapping[str, object]) -> Any:
    known = {each.name: each for each in fields(section)}
    for key in values:
        if key not in known:
            raise SettingsError(f"unknown setting '{name}.{key}': known are {', '.join(sorted(known))}")
    parsed = {key: parse(known[key], value, label=f"{name}.{key}") for key, value in values.items()}
    return replace(section, **parsed)


def _joined(section: str, values: Mapping[str, object]) -> str:
    key = next(iter(values))
    return f"{section}.{key}" if key else section


def _known_names(section: str) -> str:
    return f"there is no section '{section}'; sections are {', '.join(each.name for each in fields(Settings))}"
