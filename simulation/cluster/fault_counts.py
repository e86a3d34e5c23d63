"""Counts the faults, what clients did, and the events in a story of a cluster."""

CLUSTER_EVENTS = frozenset(
    {
        "batch overtook another",
        "disk lost",
        "leader elected",
        "log truncated",
        "reassignment begun",
        "replica joined",
        "replica left",
        "requests pipelined",
        "reply lost",
        "unclean election",
    }
)
"""The events that the faults are there to cause."""

TROUBLE_EVENTS = frozenset(
    {
        "acknowledged in the middle",
        "cut_off in the middle",
        "hang in the middle",
        "log diverged",
        "old records of brief deleted",
        "old records of short deleted",
        "older log leads",
        "partition taken in crew",
        "partition taken in modern-crew",
        "pause in the middle",
        "rest requests pipelined",
        "rest transaction committed",
        "stale commit refused in crew",
        "stale commit refused in modern-crew",
        "topic deleted",
    }
)
"""The events that only some troubles cause. Long sweeps have all of them."""


class FaultCounts:
    """See the module's docstring. happened: by the name of the fault, action or event."""

    def __init__(self) -> None:
        self.happened: dict[str, int] = {}

    def note(self, name: str) -> None:
        self.happened[name] = self.happened.get(name, 0) + 1
