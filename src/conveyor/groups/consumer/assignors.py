"""How the partitions of a group's topics are shared out, by name; `uniform` and `range` are Kafka's."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from conveyor.groups.consumer.range_assignor import assign_ranges
from conveyor.groups.consumer.uniform_assignor import assign_uniformly
from conveyor.groups.known_topics import Assigned

Wishes = Mapping[str, frozenset[UUID]]
"""By member id: the topics that the member wants to read, all of which are there."""

Assign = Callable[[Wishes, Mapping[str, Assigned], Mapping[UUID, int]], dict[str, Assigned]]
"""Takes the wishes, what each member was to read before, and the number of partitions of each topic."""

ASSIGNORS: Mapping[str, Assign] = {"uniform": assign_uniformly, "range": assign_ranges}


@dataclass(frozen=True, slots=True)
class AssignorChoice:
    """The assignors that are offered, the preferred one first."""

    names: tuple[str, ...]

    def elect(self, wanted: Iterable[str | None]) -> str:
        """The one that most members ask for; the first by name of several."""
        votes: dict[str, int] = {}
        for name in wanted:
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name)) if votes else self.names[0]
