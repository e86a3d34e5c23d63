"""Assigns replicas to brokers: spread over racks (KIP-36), then to the brokers that hold the fewest.

Brokers that are neither fenced nor stopping are live. A new partition gets replicas on other brokers only if there are
too few live ones, so that topics can be created while a broker restarts; such a replica joins the ISR when its broker
is back. The same holds in Kafka (StripedReplicaPlacer). A broker without a rack counts as a rack of its own. The first
replica, the preferred leader, is the live one whose broker is first in the fewest other partitions. A tie goes to the
lowest id, so the same image gives the same assignment. Companions are not counted: they are where their owners are.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from conveyor.cluster.image import BrokerImage, ClusterImage, PartitionImage, is_companion
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, is_gateway

Choose = Callable[[NodeId], tuple[int, ...]]


class Placement:
    """The replicas that each broker holds; each assignment is counted for the next ones."""

    def __init__(self, image: ClusterImage) -> None:
        self._held: Counter[NodeId] = Counter()
        self._preferred: Counter[NodeId] = Counter()
        live = {broker.node_id for broker in image.brokers.values() if not (broker.is_fenced or broker.is_stopping)}
        self._nodes = sorted(live)
        self._away = sorted(image.brokers.keys() - live)
        self._racks = {broker.node_id: _rack(broker) for broker in image.brokers.values()}
        for topic in image.topics.values():
            if not is_companion(topic.name):
                for partition in topic.partitions:
                    self._count(partition.target or partition.replicas)

    def assign(self, factor: int) -> tuple[NodeId, ...]:
        """Return the replicas of one more partition. Raises RequestError (INVALID_REPLICATION_FACTOR)."""
        known_count = len(self._nodes) + len(self._away)
        if not 1 <= factor <= known_count:
            raise RequestError(
                ErrorKind.INVALID_REPLICATION_FACTOR, f"replication factor {factor}: there are {known_count} brokers"
            )
        if not self._nodes:
            raise RequestError(ErrorKind.INVALID_REPLICATION_FACTOR, "no broker is live")
        chosen: list[NodeId] = []
        while len(chosen) < factor:
            chosen.append(self._next(chosen, self._nodes if len(chosen) < len(self._nodes) else self._away))
        live = chosen[: len(self._nodes)]
        first = min(live, key=lambda node: (self._preferred[node], node))
        replicas = (first, *(node for node in chosen if node != first))
        self._count(replicas)
        return replicas

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


def check_no_gateway(nodes: Iterable[int]) -> None:
    """Raise RequestError (INVALID_REPLICA_ASSIGNMENT) if one of these is a gateway."""
    for node in nodes:
        if is_gateway(node):
            raise RequestError(
                ErrorKind.INVALID_REPLICA_ASSIGNMENT, f"{node} is the id of a gateway, which holds no replicas"
            )


def new_partition(image: ClusterImage, number: int, replicas: Sequence[NodeId]) -> PartitionImage:
    """Return a new partition. Its live replicas are in sync, the first of them leads.

    Raises RequestError (INVALID_REPLICA_ASSIGNMENT) if no replica is live.
    """
    brokers = [image.brokers[node] for node in replicas]
    isr = tuple(broker.node_id for broker in brokers if not (broker.is_fenced or broker.is_stopping))
    if not isr:
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"partition {number} is assigned to {list(replicas)}: none of these brokers is live",
        )
    return PartitionImage(leader=isr[0], leader_epoch=LeaderEpoch(0), replicas=tuple(replicas), isr=isr)


def _rack(broker: BrokerImage) -> tuple[bool, str]:
    """Return the broker's rack, or one that has only this broker."""
    return (True, broker.rack) if broker.rack is not None else (False, str(broker.node_id))
