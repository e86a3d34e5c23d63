"""Replication between brokers: the links to leaders and followers, and the in-sync replicas of led partitions.

Here: what connects partitions with links, timers and threads. Not here: the content of a stream
(`replication.streams`), opening partitions and their roles (`broker.partitions`).
"""
