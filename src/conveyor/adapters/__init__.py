"""Implementations of the ports: the real disk, the system clock, the embedded metadata store, the compaction process,
TLS, and the keys of bearer tokens.

Not here: the in-memory implementations (`testing`).
"""
