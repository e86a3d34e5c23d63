"""Batches and messages that are sent again to one log: the epochs and sequences of idempotent producers, with snapshots
of them, and the deduplication ids of messages.

Not here: the allocation of producer ids (`broker.metadata`).
"""
