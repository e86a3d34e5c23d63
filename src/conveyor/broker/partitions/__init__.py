"""The partitions of this broker: table, reconciler, loop tick, flushes, retention, compaction, disk space.

Here: background work on partitions. Not here: appends and reads of clients (`broker.produce`, `broker.fetch`).
"""
