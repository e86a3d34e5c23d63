"""How much of the disk each partition's log takes."""

from collections.abc import Collection
from dataclasses import dataclass

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.kernel.ids import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """One partition's log, offline ones included. size_bytes: its segments, without their indexes."""

    partition: TopicPartition
    size_bytes: int


def log_sizes(partitions: PartitionTable, wanted: Collection[tuple[str, int]] | None) -> list[LogSize]:
    """The logs of the partitions that are wanted, of all for None. What this broker has no log of is left out."""
    return [
        LogSize(partition=each.identity, size_bytes=each.log.size_bytes)
        for each in partitions
        if wanted is None or each.identity in wanted
    ]
