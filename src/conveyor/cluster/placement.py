"""Assigns replicas to brokers: spread over racks (KIP-36), then to the brokers that hold the fewest.

Brokers that are neither fenced nor stopping are live. A new partition gets replicas on other brokers only if there are
too few live ones, so that topics can be created while a broker restarts; such a replica joins the ISR when its broker
is back. The same holds in Kafka (StripedReplicaPlacer). A broker without a rack counts as a rack of its own. The first
replica, the preferred leader, is the live one whose broker is first in the fewest other partitions. A tie goes to the
lowest id, so the same image gives the same assignment. Companions are not counted: they are where their owners are.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence

from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.image import BrokerImage, ClusterImage, PartitionImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import FIRST_LEADER_EPOCH, NodeId, is_gateway

_Load = tuple[int, int, NodeId]
"""The replicas that a broker holds, those among them that are the first ones, and its id."""
_Rack = tuple[bool, str]


class Placement:
    """The replicas that each broker holds; each assignment is counted for the next ones."""

    def __init__(self, image: ClusterImage) -> None:
        self._held: Counter[NodeId] = Counter()
        self._preferred: Counter[NodeId] = Counter()
        live = {broker.node_id for broker in image.brokers.values() if _is_live(broker)}
        self._nodes = sorted(live)
        self._away = sorted(image.brokers.keys() - live)
        self._racks = {broker.node_id: _rack(broker) for broker in image.brokers.values()}
        for topic in owners(image):
            for partition in topic.partitions:
                self._count(partition.target or partition.replicas)

    def assign(self, factor: int) -> tuple[NodeId, ...]:
        """Return the replicas of one more partition. Raises RequestError (INVALID_REPLICATION_FACTOR)."""
        return self.assign_all(factor, 1)[0]

    def assign_all(self, factor: int, count: int) -> list[tuple[NodeId, ...]]:
        """Return the replicas of so many more partitions. Raises RequestError (INVALID_REPLICATION_FACTOR).

        The live brokers stay sorted by load, so that a partition costs little more than its replicas.
        """
        _check_factor(factor, len(self._nodes), len(self._nodes) + len(self._away))
        by_load = sorted((self._held[node], self._preferred[node], node) for node in self._nodes)
        assigned = [self._assigned(factor, by_load) for _ in range(count)]
        for held, preferred, node in by_load:
            self._held[node], self._preferred[node] = held, preferred
        return assigned

    def substitute(self, replicas: Sequence[NodeId], leaving: NodeId) -> tuple[NodeId, ...]:
        """Return the replicas with another broker in the place of `leaving`.

        Raises RequestError (INVALID_REPLICATION_FACTOR) if all other brokers hold the partition already.
        """
        kept = [node for node in replicas if node != leaving]
        if not set(self._nodes) - {*replicas}:
            raise RequestError(
                ErrorKind.INVALID_REPLICATION_FACTOR, f"no live broker can take the place of broker {leaving}"
            )
        substitute = self._next(kept, [node for node in self._nodes if node != leaving])
        after = tuple(substitute if node == leaving else node for node in replicas)
        self._count(replicas, -1)
        self._count(after)
        return after

    def resize(self, replicas: Sequence[NodeId], factor: int) -> tuple[NodeId, ...]:
        """Return the first of the replicas, or all of them and further brokers, so that there are `factor`.

        Raises RequestError (INVALID_REPLICATION_FACTOR) if there are too few live brokers.
        """
        after = list(replicas[: max(1, factor)])
        if factor < 1 or len({*self._nodes, *after}) < factor:
            raise RequestError(
                ErrorKind.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}: there are {len(self._nodes)} brokers",
            )
        while len(after) < factor:
            after.append(self._next(after, self._nodes))
        self._count(replicas, -1)
        self._count(after)
        return tuple(after)

    def _assigned(self, factor: int, by_load: list[_Load]) -> tuple[NodeId, ...]:
        """Return the replicas of one more partition, and count the live ones in `by_load`."""
        live = self._least_loaded(factor, by_load)
        _, first = min([(preferred, node) for _, preferred, node in live])
        for load in live:
            held, preferred, node = load
            del by_load[bisect_left(by_load, load)]
            insort(by_load, (held + 1, preferred + (node == first), node))
        others = [node for _, _, node in live if node != first]
        while len(others) + 1 < factor:
            others.append(self._next((first, *others), self._away))
            self._held[others[-1]] += 1
        return (first, *others)

    def _least_loaded(self, count: int, by_load: list[_Load]) -> list[_Load]:
        """Return so many live brokers, or all: each round takes the least loaded broker of each rack that has one."""
        chosen: list[_Load] = []
        left, racks = by_load, self._racks
        while left and len(chosen) < count:
            passed: list[_Load] = []
            used: set[_Rack] = set()
            for load in left:
                rack = racks[load[2]]
                if rack in used:
                    passed.append(load)
                    continue
                chosen.append(load)
                if len(chosen) == count:
                    break
                used.add(rack)
            left = passed
        return chosen

    def _next(self, chosen: Sequence[NodeId], candidates: Iterable[NodeId]) -> NodeId:
        used = Counter(self._racks.get(node) for node in chosen)
        return min(
            (node for node in candidates if node not in chosen),
            key=lambda node: (used[self._racks[node]], self._held[node], self._preferred[node], node),
        )

    def _count(self, replicas: Iterable[NodeId], by: int = 1) -> None:
        for place, node in enumerate(replicas):
            self._held[node] += by
            if not place:
                self._preferred[node] += by


def check_factor(image: ClusterImage, factor: int) -> None:
    """Raise RequestError (INVALID_REPLICATION_FACTOR) if a partition cannot get so many replicas."""
    live_count = sum(map(_is_live, image.brokers.values()))
    _check_factor(factor, live_count, len(image.brokers))


def check_no_gateway(nodes: Iterable[int]) -> None:
    """Raise RequestError (INVALID_REPLICA_ASSIGNMENT) if one of these is a gateway."""
    for node in nodes:
        if is_gateway(node):
            raise RequestError(
                ErrorKind.INVALID_REPLICA_ASSIGNMENT, f"{node} is the id of a gateway, which holds no replicas"
            )


def new_partitions(
    image: ClusterImage, assignment: Iterable[Sequence[NodeId]], first_number: int = 0
) -> tuple[PartitionImage, ...]:
    """Return new partitions with these replicas. Those that are live are in sync, the first of them leads.

    Partitions with the same replicas share one immutable image.
    Raises RequestError (INVALID_REPLICA_ASSIGNMENT) if no replica of a partition is live.
    """
    by_replicas: dict[tuple[NodeId, ...], PartitionImage] = {}
    partitions: list[PartitionImage] = []
    for number, nodes in enumerate(assignment, first_number):
        replicas = tuple(nodes)
        if replicas not in by_replicas:
            by_replicas[replicas] = _new_partition(image, number, replicas)
        partitions.append(by_replicas[replicas])
    return tuple(partitions)


def _new_partition(image: ClusterImage, number: int, replicas: tuple[NodeId, ...]) -> PartitionImage:
    isr = tuple(node for node in replicas if _is_live(image.brokers[node]))
    if not isr:
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"partition {number} is assigned to {list(replicas)}: none of these brokers is live",
        )
    return PartitionImage(leader=isr[0], leader_epoch=FIRST_LEADER_EPOCH, replicas=replicas, isr=isr)


def _check_factor(factor: int, live_count: int, broker_count: int) -> None:
    if not 1 <= factor <= broker_count:
        raise RequestError(
            ErrorKind.INVALID_REPLICATION_FACTOR, f"replication factor {factor}: there are {broker_count} brokers"
        )
    if not live_count:
        raise RequestError(ErrorKind.INVALID_REPLICATION_FACTOR, "no broker is live")


def _is_live(broker: BrokerImage) -> bool:
    return not (broker.is_fenced or broker.is_stopping)


def _rack(broker: BrokerImage) -> _Rack:
    """Return the broker's rack, or one that has only this broker."""
    return (True, broker.rack) if broker.rack is not None else (False, str(broker.node_id))
