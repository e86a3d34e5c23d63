"""Leases of a subscription's messages, those of partitions that other brokers lead included.

Not here: the decision which message is leased and for how long (`queues.delivery`), and the end of a lease
(`broker.queues.settlements`).
"""
