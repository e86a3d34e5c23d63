"""Implementations of the ports: the real disk, the system clock, the embedded metadata store, the compaction process.

Not here: the in-memory implementations (`testing`).
"""
