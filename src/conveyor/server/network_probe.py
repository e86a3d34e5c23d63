"""Network counters for /metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class NetworkProbe:
    """Totals over all connections since the start."""

    connections_opened: int = 0
    connections_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
