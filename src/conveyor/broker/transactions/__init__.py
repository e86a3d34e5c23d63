"""Transactions: markers on their way to the leaders of partitions, and the batches of transactional producers.

Here: everything between a coordinator's decision, or a door's batches, and `Partition.append`. Not here: loading and
running coordinators (`broker.coordinators`), their decisions (`conveyor.transactions`).
"""
