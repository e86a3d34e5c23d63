"""Spark itself: the session with its settings, the Java it runs on, and the connectors through which jobs use topics.

Not here: Conveyor's own connector (`source`, `sink`).
"""
