"""Spark itself: the session with its settings, and the Java it runs on.

Not here: what reads or writes topics (`source`, `sink`).
"""
