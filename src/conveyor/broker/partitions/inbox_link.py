"""Links a partition to its inbox, which holds the partition's new records until they are due."""

from dataclasses import replace

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.image import INBOX, companion
from conveyor.cluster.internal_topics import owner_of
from conveyor.kernel.errors import TransientFailure
from conveyor.settings.tree import TopicSettings


def link_inbox(partitions: PartitionTable, topic: str, number: int) -> None:
    """Link a partition to its inbox, if it has one. A partition is offline if its inbox is.

    topic: the partition's or the inbox's, because either can be opened or configured first.
    """
    name = owner_of(topic)
    inbox_topic = companion(INBOX, name)
    partition, inbox = partitions.get(name, number), partitions.get(inbox_topic, number)
    failure = partitions.unopened(inbox_topic, number)
    if partition is None:
        return
    if failure is not None:
        partition.go_offline(TransientFailure(f"its inbox is offline: {failure}"))
    elif inbox is not None:
        inbox.log.topic = _inbox_settings(partition.log.topic, inbox.log.topic)
        partition.inbox = inbox


def _inbox_settings(topic: TopicSettings, inbox: TopicSettings) -> TopicSettings:
    """The topic's settings apply to checks and timestamps of records, the inbox's settings to their storage."""
    return replace(
        topic,
        cleanup_policy="acknowledged",
        retention_ms=inbox.retention_ms,
        retention_bytes=inbox.retention_bytes,
        flush_policy=inbox.flush_policy,
        segment_bytes=inbox.segment_bytes,
        segment_ms=inbox.segment_ms,
    )
