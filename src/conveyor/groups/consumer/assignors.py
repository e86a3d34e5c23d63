"""The server-side assignors by name. `uniform` and `range` behave as Kafka's."""

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import msgspec

from conveyor.groups.consumer.range_assignor import assign_ranges
from conveyor.groups.consumer.uniform_assignor import assign_uniformly
from conveyor.groups.known_topics import Assigned

Wishes = Mapping[str, frozenset[UUID]]
"""By member id: the existing topics to which the member subscribes."""

Assign = Callable[[Wishes, Mapping[str, Assigned], Mapping[UUID, int]], dict[str, Assigned]]
"""Computes target assignments from the wishes, each member's previous target, and each topic's partition count."""

ASSIGNORS: Mapping[str, Assign] = {"uniform": assign_uniformly, "range": assign_ranges}


class AssignorChoice(msgspec.Struct, frozen=True):
    """The enabled assignors, the default first."""

    names: tuple[str, ...]

    def elect(self, requested: Iterable[str | None]) -> str:
        """Return the assignor that most members request, on a tie the first by name; the default if no member requests
        one.
        """
        votes: dict[str, int] = {}
        for name in requested:
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name)) if votes else self.names[0]
