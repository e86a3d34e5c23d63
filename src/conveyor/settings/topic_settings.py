"""The settings of a topic, by Kafka's names. Those of Kafka that have no effect here are in `unused_settings`."""

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any, cast

from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import check_new_text, parse, setting
from conveyor.settings.unused_settings import UNUSED_TOPIC_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Defaults for topics; `conveyor topic create --config` overrides them for one topic."""

    segment_bytes: int = setting(
        1 << 30,
        "Maximum size of a segment; a batch that would exceed it starts a new segment. A log with 1,000 segments starts"
        " none after less than 1 MiB, whatever this and `segment.ms` say.",
        unit="bytes",
        kafka="segment.bytes",
        minimum=1024,
    )
    segment_ms: int = setting(
        7 * 24 * 3_600_000,
        "Maximum time from the first append to a segment until the broker closes it and starts a new one.",
        unit="ms",
        kafka="segment.ms",
        minimum=1,
    )
    segment_jitter_ms: int = setting(
        0,
        "Maximum random time by which a segment is closed before segment.ms, so that the partitions do not all close"
        " segments at the same time.",
        unit="ms",
        kafka="segment.jitter.ms",
        minimum=0,
    )
    cleanup_policy: str = setting(
        "delete",
        "The policy for old records. `delete`: by retention.ms and retention.bytes. `compact`: the last record of"
        " every key stays. `acknowledged`: a segment is deleted once every subscription has settled its records."
        " Policies can be combined; without any, all records stay.",
        kafka="cleanup.policy",
        choices=("delete", "compact", "acknowledged"),
        is_list=True,
        of_cluster=True,
    )
    retention_ms: int = setting(
        14 * 24 * 3_600_000,
        "Maximum age of records. A segment is deleted when all its records are older; -1 keeps records forever.",
        unit="ms",
        kafka="retention.ms",
        minimum=-1,
    )
    retention_bytes: int = setting(
        -1,
        "Maximum size of a partition. Above it the oldest segments are deleted; -1 means no limit.",
        unit="bytes",
        kafka="retention.bytes",
        minimum=-1,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "A log is compacted when at least this share of it has not been compacted yet.",
        kafka="min.cleanable.dirty.ratio",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = setting(
        0, "Records younger than this are not compacted.", unit="ms", kafka="min.compaction.lag.ms", minimum=0
    )
    max_compaction_lag_ms: int = setting(
        (1 << 63) - 1,
        "Maximum time after which a record is compacted, even below min.cleanable.dirty.ratio.",
        unit="ms",
        kafka="max.compaction.lag.ms",
        minimum=1,
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "How long a tombstone is kept after compaction has removed the older records of its key, and the marker of a"
        " transaction after compaction has removed the transaction's records.",
        unit="ms",
        kafka="delete.retention.ms",
        minimum=0,
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of log between two index entries, approximately. More than 512 KiB count as 512 KiB.",
        unit="bytes",
        kafka="index.interval.bytes",
        minimum=0,
    )
    max_message_bytes: int = setting(
        1_048_588,
        "Maximum size of a record batch: 2147483647 or less.",
        unit="bytes",
        kafka="max.message.bytes",
        minimum=0,
    )
    compression_type: str = setting(
        "producer",
        "Compression of stored batches. `producer`: as the producer sent them; otherwise the broker recompresses them.",
        kafka="compression.type",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_gzip_level: int = setting(
        -1,
        "Compression level for `compression.type=gzip`; -1 is gzip's own default.",
        kafka="compression.gzip.level",
        choices=("-1", *map(str, range(1, 10))),
    )
    compression_lz4_level: int = setting(
        9,
        "Compression level for `compression.type=lz4`.",
        kafka="compression.lz4.level",
        minimum=1,
        maximum=17,
    )
    compression_zstd_level: int = setting(
        3,
        "Compression level for `compression.type=zstd`.",
        kafka="compression.zstd.level",
        minimum=-131_072,
        maximum=22,
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "`CreateTime`: the producer sets the timestamp of a record. `LogAppendTime`: the broker sets it at append.",
        kafka="message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        (1 << 63) - 1,
        "Maximum time by which a producer's timestamp can precede the broker's clock.",
        unit="ms",
        kafka="message.timestamp.before.max.ms",
        minimum=0,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "Maximum time by which a producer's timestamp can exceed the broker's clock.",
        unit="ms",
        kafka="message.timestamp.after.max.ms",
        minimum=0,
    )
    flush_policy: str = setting(
        "ack",
        "When the broker answers acks=all and consumers see a record. `ack`: once the record is on the disk. `os`: once"
        " it is in the page cache, as in Kafka.",
        choices=("ack", "os"),
        of_cluster=True,
    )
    queue_max_in_flight: int = setting(
        100_000,
        "Maximum number of leases per partition for subscriptions that are created without `max_in_flight`.",
        unit="messages",
        minimum=1,
        maximum=1_000_000,
    )
    min_insync_replicas: int = setting(
        1,
        "Minimum number of in-sync replicas for acks=all.",
        unit="replicas",
        kafka="min.insync.replicas",
        minimum=1,
        of_cluster=True,
    )
    dedup_enable: bool = setting(
        False,
        "Drop a Kafka producer's record if its partition has had the same `conveyor-dedup-id` within"
        " dedup.window.ms. For messages published over REST the broker always does so.",
        of_cluster=True,
    )
    dedup_window_ms: int = setting(
        300_000,
        "How long a `conveyor-dedup-id` is remembered, measured by record timestamps.",
        unit="ms",
        minimum=1,
        of_cluster=True,
    )
    publisher_enable: bool = setting(
        False,
        "Set the header `conveyor-publisher` of a Kafka producer's records to its user, as `User:alice`, and remove any"
        " that the producer has sent. The broker then decodes and encodes their batches. Messages that are published"
        " over REST have the header in any topic.",
        of_cluster=True,
    )
    delay_target: str = setting(
        "",
        "Makes this a delayed topic: each of its records is appended to the same partition of this other topic at the"
        " time in its `conveyor-delay-ms` or `conveyor-deliver-at-ms` header, at once if it has none. Set when the"
        " topic is created; there is no default for all topics.",
        unit="name of a topic",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "If no replica that has all committed records is live, elect any live one; committed records may be lost.",
        kafka="unclean.leader.election.enable",
        of_cluster=True,
    )


def topic_settings(defaults: TopicSettings, overrides: Mapping[str, str]) -> TopicSettings:
    """Return a topic's settings. overrides: by Kafka's names (or Conveyor's, where Kafka has none: `flush.policy`);
    those without effect are only checked.

    Raises SettingsError.
    """
    by_topic_name = topic_setting_fields()
    values: dict[str, object] = {}
    for name, text in normalized(overrides).items():
        declared = by_topic_name.get(name)
        if declared is None:
            raise SettingsError(unknown_topic_setting(name))
        value = parse(declared, text, label=name)
        if name not in UNUSED_TOPIC_SETTINGS:
            values[declared.name] = value
    return replace(defaults, **cast("Any", values))


def unknown_topic_setting(name: str) -> str:
    """Return the text of the error for a setting that topics do not have."""
    if name == "delay.enable":
        return (
            "there is no setting 'delay.enable': create a topic with delay.target=<this topic>, and produce the records"
            " to delay to it"
        )
    return f"unknown topic setting '{name}': use one of {', '.join(sorted(topic_setting_fields()))}"


def normalized(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return settings in their stored form: a list has no blanks around its items, as in Kafka, and no item twice."""
    declared = topic_setting_fields()
    return {
        name: list_text(list_items(text)) if name in declared and declared[name].metadata["is_list"] else text
        for name, text in overrides.items()
    }


def check_new_texts(overrides: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Check the form of a topic's settings that differ from the stored ones. Raises SettingsError."""
    for name, declared in topic_setting_fields().items():
        text = overrides.get(name)
        if text is not None and text != stored.get(name):
            check_new_text(declared, text, label=name)


def list_text(items: Iterable[str]) -> str:
    """Return a list as text, with each item once. An empty item stays what it is, and is not valid beside others."""
    items = list(items)
    return ",".join(dict.fromkeys(items) if all(items) else items)


def list_items(text: str) -> list[str]:
    """Return the items of a list, without the blanks around them."""
    return [word.strip() for word in text.split(",")]


def topic_setting_fields() -> "dict[str, Field[Any]]":
    """Return every setting of a topic by its public name, also those without effect."""
    used = {topic_setting_name(declared): declared for declared in fields(TopicSettings)}
    return {**used, **UNUSED_TOPIC_SETTINGS}


def topic_setting_name(declared: "Field[Any]") -> str:
    """Return the public name of a topic's setting: Kafka's, or Conveyor's with dots."""
    return cast("str", declared.metadata["kafka"]) or declared.name.replace("_", ".")
