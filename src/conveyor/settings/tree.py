"""All settings, as one frozen tree: the source of the flags, environment variables, conveyor.toml, DescribeConfigs and
docs.

Every field has a default, a unit, a sentence and, if Kafka has the setting, Kafka's name. Creating the tree checks each
value; `check_relations` checks the relations between values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from conveyor.kernel.errors import SettingsError
from conveyor.kernel.ids import FIRST_GATEWAY_ID, is_gateway
from conveyor.settings.access_settings import AccessSettings
from conveyor.settings.groups_settings import GroupsSettings
from conveyor.settings.network_settings import NetworkSettings
from conveyor.settings.push_settings import PushSettings
from conveyor.settings.sasl_settings import SaslSettings
from conveyor.settings.setting import parse, setting
from conveyor.settings.sqs_settings import SqsSettings
from conveyor.settings.tls_settings import TlsSettings
from conveyor.settings.topic_settings import TopicSettings, topic_setting_fields, topic_setting_name, topic_settings
from conveyor.settings.transactions_settings import TransactionsSettings

__all__ = [
    "AccessSettings",
    "BrokerSettings",
    "ClientSettings",
    "DiskSettings",
    "GroupsSettings",
    "NetworkSettings",
    "ProducerSettings",
    "SaslSettings",
    "Settings",
    "SqsSettings",
    "TlsSettings",
    "TopicSettings",
    "TransactionsSettings",
    "ZookeeperSettings",
    "check_relations",
    "from_sources",
    "topic_setting_fields",
    "topic_setting_name",
    "topic_settings",
    "with_values",
]


EMBEDDED = "embedded"
SUPERVISED = "supervised:"
"""The prefix of a worker's metadata setting: the supervisor's key and socket follow. Only the supervisor sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the whole broker."""

    data_dir: str = setting(
        "./conveyor-data", "The directory that holds the records and the metadata.", kafka="log.dirs"
    )
    log_level: str = setting(
        "info",
        "The least severe log messages that are written to standard error.",
        choices=("debug", "info", "warning", "error"),
        live=True,
    )
    node_id: int = setting(
        1,
        "The id of this broker, unique in its cluster. Higher ids are those of gateways.",
        kafka="node.id",
        minimum=0,
        maximum=FIRST_GATEWAY_ID - 1,
    )
    gateway: bool = setting(
        False,
        "Hold no partitions, and serve REST by requests to the brokers that do. A gateway has no node id and no data"
        " directory; set `broker.metadata` to the address of the cluster's ZooKeeper.",
    )
    rack: str = setting("", "The rack of this broker, for replica placement and selection.", kafka="broker.rack")
    replica_selector: str = setting(
        "leader",
        "What consumers with a `client.rack` read: the `leader`, or an in-sync replica in their `rack` (KIP-392).",
        choices=("leader", "rack"), live=True,
    )  # fmt: skip
    metadata: str = setting(
        EMBEDDED,
        "Where the metadata is: `embedded` for the data directory, or the address of a ZooKeeper,"
        " `zookeeper://user:password@host:2181,host:2181/path`; user, password and path may be left out.",
        is_secret=True,
    )
    secrets_key_file: str = setting(
        "",
        "A file with the keys by which the secret of the cluster is encrypted in its metadata: one a line, each of 64"
        " hexadecimal digits (`openssl rand -hex 32`). The first one encrypts. All brokers need the file.",
        unit="path",
    )
    workers: int = setting(
        1,
        "Processes that serve this data directory. More than one are a cluster on this machine: brokers 1, 2, and so on"
        " with consecutive ports, and metadata that they share without a ZooKeeper.",
        unit="processes",
        minimum=1,
        maximum=64,
    )
    worker_session_timeout_ms: int = setting(
        4_000,
        "The other workers replace a worker that has not responded for this long. They notice at once when its process"
        " ends.",
        unit="ms",
        minimum=500,
        maximum=600_000,
    )
    auto_create_topics: bool = setting(
        True,
        "Create a topic when a client asks for one that does not exist.",
        kafka="auto.create.topics.enable",
        live=True,
    )
    num_partitions: int = setting(
        1,
        "Partitions of a topic that is created without a partition count.",
        unit="partitions",
        kafka="num.partitions",
        minimum=1,
        maximum=100_000,
        live=True,
    )
    default_replication_factor: int = setting(
        1,
        "Replicas of each partition of a topic that is created without a replication factor.",
        unit="replicas",
        kafka="default.replication.factor",
        minimum=1,
        live=True,
    )
    max_partitions: int = setting(
        20_000,
        "Maximum number of partitions on this broker, over all topics.",
        unit="partitions",
        minimum=1,
        live=True,
    )
    max_subscription_partitions: int = setting(
        100_000,
        "Maximum number of subscription partitions in the cluster: a subscription has one for each partition of its"
        " topic. Each takes about 7 KB of memory, and is read at the start. Above the limit no subscription is created,"
        " and no topic with subscriptions gets partitions.",
        unit="partitions",
        minimum=1,
        live=True,
    )
    flush_threads: int = setting(
        4,
        "Threads for the fsyncs that the kernel's own queue (Linux AIO) does not accept.",
        unit="threads",
        minimum=1,
        maximum=64,
    )
    replica_lag_time_max_ms: int = setting(
        10_000,
        "A replica that has not had all records of its leader for this long leaves the in-sync replicas.",
        unit="ms",
        kafka="replica.lag.time.max.ms",
        minimum=1,
        live=True,
    )
    replica_lag_max_messages: int = setting(
        0,
        "A replica that lacks more messages than this, for a second or longer, leaves the in-sync replicas; 0 for no"
        " limit.",
        unit="messages",
        kafka="replica.lag.max.messages",
        minimum=0,
        live=True,
    )
    catch_up_bytes_per_second: int = setting(
        0,
        "The most that this broker, as a leader, sends to replicas that are not in sync; 0 for no limit.",
        unit="bytes per second", kafka="leader.replication.throttled.rate", minimum=0, live=True,
    )  # fmt: skip
    retention_check_ms: int = setting(
        300_000,
        "Interval between checks for records that retention deletes.",
        unit="ms",
        kafka="log.retention.check.interval.ms",
        minimum=1,
        live=True,
    )
    compaction_check_ms: int = setting(
        15_000,
        "Interval between checks for logs to compact.",
        unit="ms",
        kafka="log.cleaner.backoff.ms",
        minimum=1,
        live=True,
    )
    compaction_max_keys: int = setting(
        1_000_000,
        "Maximum number of distinct keys in one compaction, about 150 bytes per key in a separate process; the next"
        " compaction continues with the records after that.",
        unit="keys",
        minimum=1,
        live=True,
    )
    dedup_max_ids: int = setting(
        1_000_000,
        "Maximum number of deduplication ids remembered for one partition, about 250 bytes per id; the oldest ids are"
        " forgotten first.",
        unit="ids",
        minimum=1,
    )
    remembered_acks: int = setting(
        500_000,
        "Maximum number of remembered acks of `exactly_once` subscriptions, over all queues, about 170 bytes per ack. A"
        " consumer can repeat an ack while it is remembered. Above the limit, the queue that remembers the most acks"
        " forgets its oldest.",
        unit="acks",
        minimum=1,
    )
    queue_cache_bytes: int = setting(
        256 << 20,
        "Memory for batches that queues have read, divided equally among the partitions with subscriptions and those of"
        " delayed topics. Every such partition keeps its last batch, even above this limit.",
        unit="bytes",
        minimum=0,
    )
    open_segment_files: int = setting(
        0, "Maximum number of open segment files; 0 means half of the process's limit.", unit="files", minimum=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Idempotent producers."""

    producer_id_expiration_ms: int = setting(
        86_400_000,
        "The broker forgets the state of a producer that has written nothing for this long.",
        unit="ms",
        kafka="producer.id.expiration.ms",
        minimum=1,
    )
    max_producers_per_partition: int = setting(
        50_000,
        "Maximum number of producers remembered for one partition; the producer that has been idle longest is forgotten"
        " first. Also the maximum number of transactions that are open in a partition.",
        unit="producers",
        minimum=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Measurement of the clients' rates, for quotas."""

    quota_window_count: int = setting(
        11,
        "Number of windows over which the rate of a client is measured.",
        unit="windows",
        kafka="quota.window.num",
        minimum=2,
        live=True,
    )
    quota_window_seconds: int = setting(
        1, "Length of one window.", unit="seconds", kafka="quota.window.size.seconds", minimum=1, live=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """Disk space, and how long the disk may take."""

    min_free_bytes: int = setting(
        -1,
        "Producers are refused while the disk has less free space than this; -1 means 5 % of the disk, at most 100"
        " MiB.",
        unit="bytes",
        minimum=-1,
    )
    stall_timeout_ms: int = setting(
        10_000,
        "A broker whose disk has not finished a flush (fsync) for this long lets other in-sync replicas lead, and"
        " copies nothing until the disk answers again.",
        unit="ms",
        minimum=1_000,
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperSettings:
    """The connection to ZooKeeper, if the metadata is there."""

    session_timeout_ms: int = setting(
        2_000,
        "ZooKeeper ends the broker's session when it has not heard from the broker for this long. It grants no less"
        " than two of its ticks: set `tickTime=500` in its `zoo.cfg`.",
        unit="ms",
        kafka="zookeeper.session.timeout.ms",
        minimum=500,
        maximum=600_000,
    )
    tls: bool = setting(
        False,
        "Connect with TLS. The servers' certificates must be valid for the names in the address.",
        kafka="zookeeper.ssl.client.enable",
    )
    tls_ca_file: str = setting(
        "", "A PEM file of certificate authorities; by default those of the operating system.", unit="path"
    )
    tls_cert_file: str = setting(
        "",
        "A PEM file with the certificate of this client, if ZooKeeper asks for one. Changed files are loaded while the"
        " broker runs.",
        unit="path",
    )
    tls_key_file: str = setting("", "A PEM file with the private key of that certificate.", unit="path")
    set_acl: bool = setting(
        False,
        "Only clients with the distinguished name of `zookeeper.tls_cert_file` have access to the nodes that the broker"
        " creates. All brokers of the cluster have this name, or one user in the address, to whom the nodes belong in"
        " any case.",
        kafka="zookeeper.set.acl",
    )

    def check(self, metadata: str) -> None:
        """Check the relations of these settings. metadata: the address. Raises SettingsError."""
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise SettingsError("zookeeper.tls_cert_file and zookeeper.tls_key_file need each other: set both or none")
        if (self.tls_ca_file or self.tls_cert_file) and not self.tls:
            raise SettingsError(
                "zookeeper.tls_ca_file and zookeeper.tls_cert_file have no effect without TLS: set zookeeper.tls=true,"
                " or remove them"
            )
        if self.set_acl and not self.tls_cert_file and "@" not in metadata:
            raise SettingsError(
                "zookeeper.set_acl needs somebody to whom the nodes belong: set zookeeper.tls_cert_file, or name a user"
                " in broker.metadata"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole tree. In conveyor.toml a section is a table, in the environment CONVEYOR_<SECTION>_<NAME>."""

    broker: BrokerSettings = field(default_factory=BrokerSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    sasl: SaslSettings = field(default_factory=SaslSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    disk: DiskSettings = field(default_factory=DiskSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    groups: GroupsSettings = field(default_factory=GroupsSettings)
    push: PushSettings = field(default_factory=PushSettings)
    transactions: TransactionsSettings = field(default_factory=TransactionsSettings)
    producers: ProducerSettings = field(default_factory=ProducerSettings)
    clients: ClientSettings = field(default_factory=ClientSettings)
    sqs: SqsSettings = field(default_factory=SqsSettings)
    zookeeper: ZookeeperSettings = field(default_factory=ZookeeperSettings)


def from_sources(*sources: Mapping[str, object]) -> Settings:
    """Build the tree from flat maps `section.name` -> value. The first map that has a name determines its value.

    Raises SettingsError for an unknown name, a wrong type, or a value out of range.
    """
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged.update(source)
    return with_values(Settings(), merged)


def with_values(settings: Settings, given: Mapping[str, object]) -> Settings:
    """Return the tree with some values replaced, by `section.name`. Raises SettingsError, as `from_sources` does."""
    sections: dict[str, dict[str, object]] = {}
    for name, value in given.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    for section, values in sections.items():
        if section not in {section_field.name for section_field in fields(Settings)}:
            raise SettingsError(f"unknown setting '{_joined(section, values)}': {_known_names(section)}")
        settings = replace(settings, **{section: _fill(getattr(settings, section), section, values)})
    check_relations(settings)
    return settings


def check_relations(settings: Settings) -> None:
    """Check the relations between settings. Raises SettingsError with the names of both."""
    groups, network = settings.groups, settings.network
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
    _check_topics(settings.topics, network)
    if settings.broker.gateway and settings.broker.workers > 1:
        raise SettingsError(
            "broker.gateway and broker.workers exclude each other: a gateway is one process; start several, each with"
            " its own ports"
        )
    if settings.broker.gateway and settings.broker.metadata == EMBEDDED:
        raise SettingsError(
            "broker.gateway needs the metadata of the cluster that it belongs to: set broker.metadata to the address of"
            " its ZooKeeper"
        )
    has_node_id = settings.broker.node_id != BrokerSettings().node_id and not is_gateway(settings.broker.node_id)
    if settings.broker.gateway and has_node_id:
        raise SettingsError("broker.gateway and broker.node_id exclude each other: a gateway gets its id by itself")
    settings.zookeeper.check(settings.broker.metadata)
    settings.tls.check()
    _check_access(settings.access)
    _check_origins(network, settings.tls)
    settings.sasl.check(network.sasl_mechanisms)
    settings.sqs.check(has_users=network.http_users)
    if network.max_request_bytes > network.max_buffered_bytes:
        raise SettingsError(
            f"network.max_request_bytes ({network.max_request_bytes}) is above network.max_buffered_bytes"
            f" ({network.max_buffered_bytes}): raise the second"
        )


def _check_origins(network: NetworkSettings, tls: TlsSettings) -> None:
    logs_in = network.http_users or network.token_file or tls.client_auth != "none"
    if logs_in and "*" in network.cors_origins:
        raise SettingsError(
            "network.http_cors_origins is '*', which is for brokers whose HTTP clients do not log in: list the origins,"
            " or unset network.http_users, network.token_file and tls.client_auth"
        )


def _check_access(access: AccessSettings) -> None:
    wrong = sorted(name for name in access.super_user_names if not name.startswith("User:") or name == "User:")
    if wrong:
        raise SettingsError(f"access.super_users names '{wrong[0]}', who is nobody: write it as 'User:admin;User:ops'")


def _check_topics(topics: TopicSettings, network: NetworkSettings) -> None:
    if topics.max_message_bytes > network.max_request_bytes:
        raise SettingsError(
            f"topics.max_message_bytes ({topics.max_message_bytes}) is above network.max_request_bytes"
            f" ({network.max_request_bytes}): no request could carry such a batch; raise the second"
        )
    if topics.delay_target:
        raise SettingsError(
            "topics.delay_target has no default for all topics: set delay.target when you create a delayed topic"
        )


def _fill(section: Any, name: str, values: Mapping[str, object]) -> Any:
    declared_fields = {declared.name: declared for declared in fields(section)}
    for key in values:
        if key not in declared_fields:
            raise SettingsError(f"unknown setting '{name}.{key}': use one of {', '.join(sorted(declared_fields))}")
    parsed = {key: parse(declared_fields[key], value, label=f"{name}.{key}") for key, value in values.items()}
    return replace(section, **parsed)


def _joined(section: str, values: Mapping[str, object]) -> str:
    key = next(iter(values))
    return f"{section}.{key}" if key else section


def _known_names(section: str) -> str:
    sections = ", ".join(section_field.name for section_field in fields(Settings))
    return f"there is no section '{section}'; sections are {sections}"
