"""The partitions of this broker: table, reconciler, opening of logs, their directories, replica checkpoint, loop tick,
flushes, retention, compaction, disk space.

Here: what nobody asked for in a request. Not here: appends and reads of clients (`broker.produce`, `broker.fetch`).
"""
