"""What each topic can set for itself, by Kafka's names.

Kafka's settings that Conveyor has no use for are known too: what creates a topic on Kafka creates it here. They are
checked, stored and described as Kafka does, and their sentence says why they are "without effect here".
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any, cast

from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import parse, setting

_THROTTLED = r"\s*(\*|([0-9]+:[0-9]+)?(\s*,\s*[0-9]+:[0-9]+)*)\s*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What each topic can set for itself (`conveyor topic create --config`); the section gives the defaults."""

    segment_bytes: int = setting(
        1 << 30, "A segment is closed when it would grow beyond this.", unit="bytes", kafka="segment.bytes", low=1024
    )
    segment_ms: int = setting(
        7 * 24 * 3_600_000,
        "A segment is closed when its first record is this old.",
        unit="ms",
        kafka="segment.ms",
        low=1,
    )
    segment_jitter_ms: int = setting(
        0,
        "A segment is closed up to this much before segment.ms, each at a time of its own, so that not all partitions"
        " do it at once.",
        unit="ms",
        kafka="segment.jitter.ms",
        low=0,
    )
    cleanup_policy: str = setting(
        "delete",
        "What happens to old records: `delete`, by retention.ms and retention.bytes; `compact`, where the last record"
        " of each key stays; `acknowledged`, once every subscription has settled them; or several of them.",
        kafka="cleanup.policy",
        choices=("delete", "compact", "acknowledged"),
        several=True,
    )
    retention_ms: int = setting(
        14 * 24 * 3_600_000,
        "Records older than this are deleted, by whole segments; -1 keeps them for ever.",
        unit="ms",
        kafka="retention.ms",
        low=-1,
    )
    retention_bytes: int = setting(
        -1,
        "A partition larger than this loses its oldest segments; -1 for no limit.",
        unit="bytes",
        kafka="retention.bytes",
        low=-1,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "A log is compacted when this share of it has not been compacted yet.",
        kafka="min.cleanable.dirty.ratio",
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = setting(
        0, "Records younger than this are not compacted.", unit="ms", kafka="min.compaction.lag.ms", low=0
    )
    max_compaction_lag_ms: int = setting(
        (1 << 63) - 1,
        "A record is compacted after this at the latest, however little there is to do.",
        unit="ms",
        kafka="max.compaction.lag.ms",
        low=1,
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "How long a tombstone stays for readers, once it is all that is left of its key.",
        unit="ms",
        kafka="delete.retention.ms",
        low=0,
    )
    index_interval_bytes: int = setting(
        4096, "One index entry for about this much log.", unit="bytes", kafka="index.interval.bytes", low=0
    )
    max_message_bytes: int = setting(
        1_048_588, "The largest record batch taken.", unit="bytes", kafka="max.message.bytes", low=0
    )
    compression_type: str = setting(
        "producer",
        "How records are stored: as their producer packed them, or packed anew by the broker.",
        kafka="compression.type",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_gzip_level: int = setting(
        -1,
        "How hard the broker packs with gzip, where compression.type asks for it; -1 is gzip's own default.",
        kafka="compression.gzip.level",
        choices=("-1", *map(str, range(1, 10))),
    )
    compression_lz4_level: int = setting(
        9,
        "How hard the broker packs with lz4, where compression.type asks for it.",
        kafka="compression.lz4.level",
        low=1,
        high=17,
    )
    compression_zstd_level: int = setting(
        3,
        "How hard the broker packs with zstd, where compression.type asks for it.",
        kafka="compression.zstd.level",
        low=-131_072,
        high=22,
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whose clock stamps the records: the producer's, or the broker's at append.",
        kafka="message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        (1 << 63) - 1,
        "How far before the broker's time a producer's timestamp may lie.",
        unit="ms",
        kafka="message.timestamp.before.max.ms",
        low=0,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "How far after the broker's time a producer's timestamp may lie.",
        unit="ms",
        kafka="message.timestamp.after.max.ms",
        low=0,
    )
    flush_policy: str = setting(
        "ack",
        "When acks=all is answered and consumers see a record: `ack`, once it is on the disk;"
        " `os`, once it is in the page cache, as Kafka does.",
        choices=("ack", "os"),
    )
    queue_max_in_flight: int = setting(
        100_000,
        "Leases at once in each partition, for subscriptions that do not say `max_in_flight` when they are made.",
        unit="messages",
        low=1,
        high=1_000_000,
    )
    min_insync_replicas: int = setting(
        1, "How many replicas acks=all needs.", unit="replicas", kafka="min.insync.replicas", low=1
    )
    dedup_enable: bool = setting(
        False,
        "Leave out records, whoever produces them, whose `conveyor-dedup-id` was there within dedup.window.ms. REST"
        " always does.",
    )
    dedup_window_ms: int = setting(
        300_000, "How long a `conveyor-dedup-id` is remembered, by the records' timestamps.", unit="ms", low=1
    )
    delay_enable: bool = setting(
        False,
        "Let nobody see a record before `conveyor-delay-ms` or `conveyor-deliver-at-ms` says, not even who reads the"
        " topic as a stream: it waits outside of the topic, and gets its offset when it is due.",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Without effect here, as only a replica that is in sync ever leads.",
        kafka="unclean.leader.election.enable",
    )
    flush_messages: int = setting(
        (1 << 63) - 1,
        "Without effect here, as flush.policy says when records go to the disk.",
        unit="records",
        kafka="flush.messages",
        low=1,
    )
    flush_ms: int = setting(
        (1 << 63) - 1,
        "Without effect here, as flush.policy says when records go to the disk.",
        unit="ms",
        kafka="flush.ms",
        low=0,
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "Without effect here, as files go at once, and whoever reads one can finish.",
        unit="ms",
        kafka="file.delete.delay.ms",
        low=0,
    )
    segment_index_bytes: int = setting(
        10 << 20,
        "Without effect here, as an index grows with its segment, up to segment.bytes.",
        unit="bytes",
        kafka="segment.index.bytes",
        low=4,
        high=(1 << 31) - 1,
    )
    preallocate: bool = setting(
        False, "Without effect here, as a segment's file grows as it is written.", kafka="preallocate"
    )
    leader_replication_throttled_replicas: str = setting(
        "",
        "Without effect here, as replication has no quota.",
        unit="* or partition:broker,...",
        kafka="leader.replication.throttled.replicas",
        pattern=_THROTTLED,
        several=True,
    )
    follower_replication_throttled_replicas: str = setting(
        "",
        "Without effect here, as replication has no quota.",
        unit="* or partition:broker,...",
        kafka="follower.replication.throttled.replicas",
        pattern=_THROTTLED,
        several=True,
    )
    remote_storage_enable: bool = setting(
        False, "Without effect here, as there is no remote storage.", kafka="remote.storage.enable", choices=("false",)
    )
    remote_log_copy_disable: bool = setting(
        False,
        "Without effect here, as there is no remote storage.",
        kafka="remote.log.copy.disable",
        choices=("false",),
    )
    remote_log_delete_on_disable: bool = setting(
        False,
        "Without effect here, as there is no remote storage.",
        kafka="remote.log.delete.on.disable",
        choices=("false",),
    )
    local_retention_ms: int = setting(
        -2,
        "Without effect here, as all of a log is local: -2, what retention.ms says.",
        unit="ms",
        kafka="local.retention.ms",
        choices=("-2",),
    )
    local_retention_bytes: int = setting(
        -2,
        "Without effect here, as all of a log is local: -2, what retention.bytes says.",
        unit="bytes",
        kafka="local.retention.bytes",
        choices=("-2",),
    )
    message_downconversion_enable: bool = setting(
        True,
        "Without effect here, as records are stored and sent in one format only.",
        kafka="message.downconversion.enable",
    )


def topic_settings(defaults: TopicSettings, overrides: Mapping[str, str]) -> TopicSettings:
    """A topic's settings from its overrides by Kafka's names (or ours, where Kafka has none: `flush.policy`).

    Raises SettingsError.
    """
    by_topic_name = topic_setting_fields()
    values: dict[str, object] = {}
    for name, text in tidied(overrides).items():
        if name not in by_topic_name:
            known = ", ".join(sorted(by_topic_name))
            raise SettingsError(f"unknown topic setting '{name}': known are {known}")
        values[by_topic_name[name].name] = parse(by_topic_name[name], text, label=name)
    return replace(defaults, **cast("Any", values))


def tidied(overrides: Mapping[str, str]) -> dict[str, str]:
    """Settings as they are stored: Kafka drops the blanks around the words of a list."""
    declared = topic_setting_fields()
    return {
        name: ",".join(words(text)) if name in declared and declared[name].metadata["several"] else text
        for name, text in overrides.items()
    }


def words(text: str) -> list[str]:
    """The words of a list, without the blanks around them."""
    return [each.strip() for each in text.split(",")]


def topic_setting_fields() -> "dict[str, Field[Any]]":
    """Every setting of a topic by the name it is given by."""
    return {topic_setting_name(each): each for each in fields(TopicSettings)}


def topic_setting_name(declared: "Field[Any]") -> str:
    """The name by which a topic's setting is given: Kafka's, else ours with dots."""
    return cast("str", declared.metadata["kafka"]) or declared.name.replace("_", ".")
