"""Carries the markers of transactions from their coordinators to the leaders of partitions.

Here: everything between a coordinator's decision and the append of its markers. Not here: loading and running
coordinators (`broker.coordinators`), their decisions (`conveyor.transactions`), the batches of transactional producers
(`broker.produce.verification`).
"""
