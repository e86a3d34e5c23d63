"""Network counters for /metrics."""

from dataclasses import dataclass, field
from typing import Protocol


class Expiring(Protocol):
    """A certificate. expires_at_s: when it ends, in seconds since 1970; None if there is none, but authorities."""

    @property
    def expires_at_s(self) -> float | None: ...


@dataclass(slots=True)
class NetworkProbe:
    """Totals over all connections since the start."""

    connections_opened: int = 0
    connections_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    certificates: dict[str, Expiring] = field(default_factory=dict)
    """From files, by whom they are shown to."""
