"""The disk usage of each partition's log."""

from collections.abc import Collection

import msgspec

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.kernel.ids import TopicPartition


class LogSize(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's log, online or offline. size_bytes: its segments, without their indexes."""

    partition: TopicPartition
    size_bytes: int


def log_sizes(partitions: PartitionTable, wanted: Collection[tuple[str, int]] | None) -> list[LogSize]:
    """Return the logs of the requested partitions, or all logs for None. Partitions without a log here are omitted."""
    return [
        LogSize(partition=partition.identity, size_bytes=partition.log.segments.size_bytes)
        for partition in partitions
        if wanted is None or partition.identity in wanted
    ]
