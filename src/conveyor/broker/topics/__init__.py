"""Topics: creates, changes, deletes and describes topics and their settings; shows those of brokers, groups, loggers.

Here: requests of clients. Not here: the decisions (`cluster`), the resulting changes of partitions
(`broker.partitions`).
"""
