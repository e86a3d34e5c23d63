"""Plans the moves that spread replicas and preferred leaders evenly over the live brokers.

    1   a replica moves from a broker to one that holds at least two fewer, until there is no such pair. A partition
        keeps the number of its racks (KIP-36). A follower moves rather than a preferred leader
    2   a partition's replicas are reordered so that another live broker is preferred, if that one is preferred by at
        least two partitions fewer

Each step lowers the sum of the squares of the counts, so the plan ends. Replicas on fenced brokers stay where they are:
their broker may return; `drain_plan` empties a broker that does not. Partitions in a reassignment are counted, and not
moved. Companions are not counted: they are where their owners are.
"""

from collections import Counter
from collections.abc import Iterator

from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.controller.liveness import liveness_of
from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import NodeId

Bundle = tuple[str, int]


def balance_plan(image: ClusterImage) -> list[Reassignment]:
    """Return the reassignments that balance the cluster, in the order of its topics; empty if it is balanced."""
    draft = _Assignments(image)
    while draft.move_one():
        pass
    while draft.prefer_one():
        pass
    return draft.changed()


class _Assignments:
    """The replicas of all bundles as planned so far."""

    def __init__(self, image: ClusterImage) -> None:
        self._nodes = sorted(liveness_of(image.brokers).ready)
        self._racks = {broker.node_id: broker.rack or f"broker {broker.node_id}" for broker in image.brokers.values()}
        self._before: dict[Bundle, tuple[NodeId, ...]] = {}
        self._replicas: dict[Bundle, tuple[NodeId, ...]] = {}
        self._held: Counter[NodeId] = Counter()
        self._preferred: Counter[NodeId] = Counter()
        self._movable: dict[NodeId, dict[Bundle, None]] = {node: {} for node in self._nodes}
        for topic in owners(image):
            for number, partition in enumerate(topic.partitions):
                replicas = partition.target or partition.replicas
                self._held.update(replicas)
                self._preferred[replicas[0]] += 1
                if not partition.target:
                    self._add(topic.name, number, replicas)

    def move_one(self) -> bool:
        """Move one replica. Returns whether there was one to move."""
        by_load = sorted(self._nodes, key=lambda node: (self._held[node], node))
        for donor in reversed(by_load):
            for receiver in by_load:
                if self._held[donor] - self._held[receiver] < 2:
                    break
                bundle = next(self._candidates(donor, receiver), None)
                if bundle is not None:
                    self._move(bundle, donor, receiver)
                    return True
        return False

    def prefer_one(self) -> bool:
        """Let another broker be preferred by one partition. Returns whether there was such a partition."""
        for bundle, replicas in self._replicas.items():
            first = replicas[0]
            least = min((node for node in replicas if node in self._movable), key=self._load, default=first)
            if first in self._movable and self._preferred[first] - self._preferred[least] >= 2:
                self._replicas[bundle] = (least, *(node for node in replicas if node != least))
                self._preferred[first] -= 1
                self._preferred[least] += 1
                return True
        return False

    def changed(self) -> list[Reassignment]:
        return [
            Reassignment(topic=bundle[0], partition=bundle[1], target=replicas)
            for bundle, replicas in self._replicas.items()
            if replicas != self._before[bundle]
        ]

    def _add(self, topic: str, number: int, replicas: tuple[NodeId, ...]) -> None:
        self._before[topic, number] = self._replicas[topic, number] = replicas
        for node in replicas:
            if node in self._movable:
                self._movable[node][topic, number] = None

    def _load(self, node: NodeId) -> tuple[int, NodeId]:
        return self._preferred[node], node

    def _candidates(self, donor: NodeId, receiver: NodeId) -> Iterator[Bundle]:
        """Yield the bundles that can move, those that do not prefer the donor first."""
        preferring = []
        for bundle in self._movable[donor]:
            if self._may_move(bundle, donor, receiver):
                if self._replicas[bundle][0] != donor:
                    yield bundle
                preferring.append(bundle)
        yield from preferring

    def _may_move(self, bundle: Bundle, donor: NodeId, receiver: NodeId) -> bool:
        before = self._replicas[bundle]
        if receiver in before:
            return False
        after = [receiver if node == donor else node for node in before]
        return self._rack_count(after) >= self._rack_count(before)

    def _rack_count(self, replicas: "tuple[NodeId, ...] | list[NodeId]") -> int:
        return len({self._racks.get(node) for node in replicas})

    def _move(self, bundle: Bundle, donor: NodeId, receiver: NodeId) -> None:
        before = self._replicas[bundle]
        self._replicas[bundle] = tuple(receiver if node == donor else node for node in before)
        if before[0] == donor:
            self._preferred[donor] -= 1
            self._preferred[receiver] += 1
        self._held[donor] -= 1
        self._held[receiver] += 1
        del self._movable[donor][bundle]
        self._movable[receiver][bundle] = None
