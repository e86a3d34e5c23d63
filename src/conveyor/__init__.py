"""Conveyor: one durable, partitioned log, read as a stream and as a queue."""

__version__ = "0.1.0"
