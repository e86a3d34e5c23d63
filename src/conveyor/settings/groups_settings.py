"""The coordinators of consumer groups, and the limits of groups and members."""

from dataclasses import dataclass

from conveyor.settings.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsSettings:
    """Consumer groups."""

    offsets_partitions: int = setting(
        8,
        "Partitions of `__consumer_offsets`, the topic that holds committed offsets.",
        unit="partitions",
        kafka="offsets.topic.num.partitions",
        minimum=1,
        maximum=1000,
    )
    offsets_replication_factor: int = setting(
        3,
        "Replicas of `__consumer_offsets`. Consumer groups cannot start before that many brokers have registered,"
        " because the topic is not created. With embedded metadata, no more than there are workers.",
        unit="replicas",
        kafka="offsets.topic.replication.factor",
        minimum=1,
    )
    initial_rebalance_delay_ms: int = setting(
        0,
        "How long the first rebalance of an empty group waits for more members.",
        unit="ms",
        kafka="group.initial.rebalance.delay.ms",
        minimum=0,
        live=True,
    )
    min_session_timeout_ms: int = setting(
        6_000,
        "The shortest session timeout that a member can request.",
        unit="ms",
        kafka="group.min.session.timeout.ms",
        minimum=1,
        live=True,
    )
    max_session_timeout_ms: int = setting(
        1_800_000,
        "The longest session timeout that a member can request.",
        unit="ms",
        kafka="group.max.session.timeout.ms",
        minimum=1,
        live=True,
    )
    max_size: int = setting(
        10_000,
        "Maximum number of members of a group of the classic protocol.",
        unit="members",
        kafka="group.max.size",
        minimum=1,
        live=True,
    )
    consumer_session_timeout_ms: int = setting(
        45_000,
        "The coordinator removes a member of the consumer protocol (KIP-848) that sends no heartbeat for this long.",
        unit="ms",
        kafka="group.consumer.session.timeout.ms",
        minimum=1,
        live=True,
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000,
        "Interval at which members of the consumer protocol send heartbeats.",
        unit="ms",
        kafka="group.consumer.heartbeat.interval.ms",
        minimum=1,
        live=True,
    )
    consumer_max_size: int = setting(
        10_000,
        "Maximum number of members of a group of the consumer protocol.",
        unit="members",
        kafka="group.consumer.max.size",
        minimum=1,
        live=True,
    )
    consumer_assignors: str = setting(
        "uniform,range",
        "Assignors that groups of the consumer protocol can use; the first one applies if no member requests one.",
        kafka="group.consumer.assignors",
        choices=("uniform", "range"),
        is_list=True,
        pattern=".+",
    )
    consumer_migration_policy: str = setting(
        "bidirectional",
        "Whether a group with members can change from the classic to the consumer protocol (`upgrade`), from the"
        " consumer to the classic protocol (`downgrade`), or in both directions.",
        kafka="group.consumer.migration.policy",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        live=True,
    )
    member_metadata_max_bytes: int = setting(
        4_194_304,
        "Maximum size of a classic member's subscription metadata, over all its assignors.",
        unit="bytes",
        minimum=1024,
        live=True,
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        "Maximum size of the metadata string that a client commits with an offset.",
        unit="bytes",
        kafka="offset.metadata.max.bytes",
        minimum=0,
        live=True,
    )
    offsets_retention_ms: int = setting(
        7 * 24 * 3_600_000,
        "How long the committed offsets of an empty group are kept.",
        unit="ms",
        minimum=1,
        live=True,
    )
