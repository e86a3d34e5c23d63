"""Transactions: one state machine for each partition of `__transaction_state`.

Here: the machine of the transaction coordinator, its commands and replies, its transitions and the format of its
records. Not here: which broker coordinates a transactional id, sending markers to other brokers (`broker`), markers in
a partition's log (`log`), and the wire protocol (`kafka_api`).
"""
