"""The controller of the replication model."""

from dataclasses import dataclass, replace

from conveyor.kernel.ids import LeaderEpoch, NodeId

NODES = tuple(map(NodeId, (1, 2, 3)))
MIN_ISR = 2


@dataclass(frozen=True)
class View:
    """The partition, as the controller has last stored it. broker_epochs: of the live brokers."""

    leader: NodeId | None
    epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[NodeId, ...]
    elr: tuple[NodeId, ...]
    broker_epochs: dict[NodeId, int]


@dataclass(frozen=True)
class Request:
    """A leader asks for another ISR."""

    view: View
    isr: tuple[NodeId, ...]
    joining: dict[NodeId, int]


class Controller:
    """Decides as `conveyor.cluster.controller` does, for one partition."""

    def __init__(self) -> None:
        self.view = View(NODES[0], LeaderEpoch(1), 0, NODES, (), dict.fromkeys(NODES, 0))
        self.elections = 0

    def fence(self, node: NodeId) -> None:
        """End a registration: another replica leads, if one that has all committed records is live."""
        view = self.view
        live = {other: epoch for other, epoch in view.broker_epochs.items() if other != node}
        self.view = replace(view, broker_epochs=live, partition_epoch=view.partition_epoch + 1)
        if view.leader == node:
            self._elect(node)
        elif node in view.isr:
            self._shrink(tuple(other for other in view.isr if other != node))

    def register(self, node: NodeId, broker_epoch: int) -> None:
        view = self.view
        live = {**view.broker_epochs, node: broker_epoch}
        self.view = replace(view, broker_epochs=live, partition_epoch=view.partition_epoch + 1)
        if view.leader is None:
            self._elect(None)

    def alter(self, request: Request) -> None:
        """Change the ISR, unless the partition or a broker that joins has changed since the request."""
        view = self.view
        live = request.joining.items() <= view.broker_epochs.items()
        if request.view.partition_epoch == view.partition_epoch and request.view.epoch == view.epoch and live:
            self.view = replace(view, partition_epoch=view.partition_epoch + 1)
            self._shrink(tuple(sorted(request.isr)))

    def _shrink(self, isr: tuple[NodeId, ...]) -> None:
        view = self.view
        elr = () if len(isr) >= MIN_ISR else tuple(sorted({*view.elr, *view.isr} - set(isr)))
        self.view = replace(view, isr=isr, elr=elr)

    def _elect(self, fenced: NodeId | None) -> None:
        view = self.view
        epoch = LeaderEpoch(view.epoch + 1)
        candidates = [node for node in view.isr if node in view.broker_epochs]
        eligible = [node for node in view.elr if node in view.broker_epochs]
        self.elections += 1
        if candidates:
            self.view = replace(view, leader=candidates[0], epoch=epoch)
            self._shrink(tuple(node for node in view.isr if node != fenced))
        elif eligible:
            others = tuple(sorted({*view.isr, *view.elr} - {eligible[0]}))
            self.view = replace(view, leader=eligible[0], epoch=epoch, isr=(eligible[0],), elr=others)
        else:
            self.view = replace(view, leader=None, epoch=epoch)
