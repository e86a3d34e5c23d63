"""A partition: its role, its high watermark and its waiters; and the runner of a state machine on a partition.

Here: a leader's durability guarantees. Not here: the choice of the leader (`cluster`), opening partitions
(`broker.partitions`), the decisions of machines (`groups`, `transactions`, `queues`, `delay`).
"""
