"""How often each fault and each event has happened in a story of a cluster."""

CLUSTER_EVENTS = frozenset(
    {
        "disk lost",
        "leader elected",
        "log truncated",
        "reassignment begun",
        "replica joined",
        "replica left",
        "reply lost",
        "unclean election",
    }
)
"""The events that the faults are there to cause."""

TROUBLE_EVENTS = frozenset({"log diverged", "older log leads"})
"""The events that only some troubles cause, in long sweeps."""


class FaultCounts:
    """See the module's docstring. happened: by the name of the fault or event."""

    def __init__(self) -> None:
        self.happened: dict[str, int] = {}

    def note(self, name: str) -> None:
        self.happened[name] = self.happened.get(name, 0) + 1
