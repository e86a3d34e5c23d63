"""The room of liveness, assembled."""

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.liveness.dead_peer_detector import DeadPeerDetector
from conveyor.broker.liveness.isolation import Isolation
from conveyor.broker.liveness.lost_leaders import LostLeaders
from conveyor.broker.liveness.membership import Membership
from conveyor.broker.partitions.log_opening import LogOpening
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services


class BrokerLiveness:
    """See the module's docstring.

    is_stopping: set when the broker begins to stop; `/readyz` reports it.
    """

    def __init__(
        self,
        services: Services,
        reconciler: Reconciler,
        logs: LogOpening,
        links: ClusterLinks,
        calls: LeaderCalls,
        ports: BrokerPorts,
    ) -> None:
        self.is_stopping = False
        self.membership = Membership(services, reconciler, logs, ports)
        self.isolation = Isolation(services, calls)
        self.lost_leaders = LostLeaders(services, links)
        DeadPeerDetector(services, links)
