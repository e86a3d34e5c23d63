"""Implementations of the ports: the real disk, the system clock, the embedded metadata store, the compaction process;
and TLS.

Not here: the in-memory implementations (`testing`).
"""
