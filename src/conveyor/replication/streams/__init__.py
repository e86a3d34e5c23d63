"""Replication streams: the frames between a leader and a follower, and both ends of such a link.

Here: what an end sends for what it has received, and its reads and appends of the partition. Not here: links, timers
and threads (`broker.replicas`), the log of a follower (`log`), the choice of the leader and of the ISR (`cluster`).
"""
