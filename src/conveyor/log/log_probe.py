"""Counters of the log, plain numbers that /metrics reads."""

from dataclasses import dataclass


@dataclass(slots=True)
class LogProbe:
    """Summed over all partitions of a broker since its start."""

    appended_batches: int = 0
    appended_records: int = 0
    appended_bytes: int = 0
    recovered_segments: int = 0
    truncated_bytes: int = 0
