"""One broker, assembled from its rooms. Doors use the faces of these rooms and nothing below them."""

from collections.abc import Mapping

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.clients.clients import Clients
from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.coordinators.all_coordinators import AllCoordinators
from conveyor.broker.fetch.fetch import Fetch
from conveyor.broker.liveness.broker_liveness import BrokerLiveness
from conveyor.broker.metadata.cluster_view import ClusterView
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.store_patience import until_answered
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.produce.broker_produce import Produce
from conveyor.broker.queues.pushing.pushing import Pushing
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.queues import Queues
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.replicas.replicator import Replicator
from conveyor.broker.schedules.schedules import Schedules
from conveyor.broker.services import Services
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.broker.transaction_requests.transaction_requests import TransactionRequests
from conveyor.cluster.image import BrokerEndpoint, BrokerImage
from conveyor.settings.tree import Settings


class BrokerNode:
    """See the module's docstring. Call `start` before any other method; `stop` flushes everything.

    A room takes rooms before it, and listens to their signals. What it starts enters `Services.serving`, which stops it
    in reverse: the work in the background, then the requests, then replication and the reconciler.
    """

    def __init__(self, settings: Settings, ports: BrokerPorts) -> None:
        metadata_threads = ports.metadata_threads or ports.threads
        self.metadata = Metadata(ports.store, metadata_threads, ports.new_id, ports.clock, ports.failed)
        self.clock, self.tasks = ports.clock, Tasks(ports.failed)
        self._services = services = Services(
            settings=settings, clock=ports.clock, threads=ports.threads, tasks=self.tasks, metadata=self.metadata,
            new_id=ports.new_id,
        )  # fmt: skip
        self._ports = ports
        self.slices = services.slices
        services.serving.push_async_callback(self.tasks.stop)
        self.cluster = ClusterView(services)
        self.partitions = partitions = Partitions(services, ports, self.cluster.subscriptions)
        self._links = links = ClusterLinks(services, ports.peers)
        self.replicas = Replicator(services, partitions, links)
        services.serving.push_async_callback(partitions.drain)
        services.serving.callback(self.replicas.follow_no_more)
        calls = LeaderCalls(services, links)
        self.topics = Topics(services, partitions, self.cluster.subscriptions, calls)
        self.fetch = Fetch(services, partitions, self.topics, calls)
        self.produce = Produce(services, partitions, self.topics, calls)
        self.clients = Clients(services, self.topics, self.produce.messages, ports.key_source)
        self.coordinators = AllCoordinators(services, self.cluster, partitions, calls, self.topics, self.produce)
        self.schedules = Schedules(services, self.topics, self.produce.messages, self.fetch.browser)
        queue_calls = QueueCalls(
            services, leaders=calls, topics=self.topics, table=partitions.table,
            subscriptions=self.cluster.subscriptions, partitions=self.coordinators.queues,
        )  # fmt: skip
        self.queues = Queues(services, self.topics, queue_calls, self.coordinators, self.fetch, self.produce)
        self.pushing = Pushing(services, self.queues, queue_calls, self.clients.access, ports)
        self.transaction_requests = TransactionRequests(
            services, self.coordinators.transactions, self.produce.messages, self.queues.settlements, calls
        )
        self.liveness = BrokerLiveness(services, partitions, links, calls, ports)

    @property
    def settings(self) -> Settings:
        """The settings in force; they change at run time."""
        return self._services.settings

    async def start(self, listeners: Mapping[str, BrokerEndpoint]) -> None:
        """Recover the data on the disk and join the cluster.

        listeners: where Kafka clients reach this broker, by the listener's name; the first one is shown to operators.
        Raises StorageFailure; StartupError if the data directory belongs to another broker.
        """
        await self.partitions.measure_room()
        first = next(iter(listeners.values()))
        broker = BrokerImage(
            node_id=self._services.me,
            host=first.host,
            port=first.port,
            rack=self.settings.broker.rack or None,
            peer_host=self._links.host,
            peer_port=self._links.port,
            http_url=self.settings.network.http_advertised,
            listeners=listeners,
        )
        await self.metadata.load(broker)
        self._ports.joined(self.metadata.image.cluster_id)
        await until_answered(self.cluster.dynamic_settings.agree, self.clock)
        await until_answered(lambda: self._links.open(self._ports.store, self._ports.secret_keys), self.clock)
        await self.liveness.prepare()
        await self.topics.start()
        await self.liveness.join(broker)
        self.coordinators.queues.start()
        self.pushing.start()
        self.schedules.start()
        self.replicas.start()
        self.partitions.start()

    async def finish_requests(self) -> None:
        """Answer all waiting requests: with the available records, with an error, or after the last flush.

        Other brokers lead this broker's partitions first, where they can.
        """
        await self.liveness.hand_over()
        await self.fetch.finish()
        await self._services.serving.aclose()

    async def stop(self) -> None:
        """Flush and seal every log. All acknowledged records are on the disk when this returns."""
        await self._services.serving.aclose()
        await self.liveness.leave()
        await self.metadata.close()
        self.cluster.log_levels.reset()
