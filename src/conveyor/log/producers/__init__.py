"""Idempotent producers of one log: their epochs and sequences, and snapshots of this state.

Here: detecting duplicate batches. Not here: the allocation of producer ids (`broker.metadata`), and deduplication ids
of messages (`queues.messages.dedup`).
"""
