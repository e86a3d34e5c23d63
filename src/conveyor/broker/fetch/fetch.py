"""The room of fetching, assembled."""

from conveyor.broker.fetch.fetch_sessions import FetchSessions
from conveyor.broker.fetch.fetcher import Fetcher
from conveyor.broker.fetch.list_offsets import OffsetFinder
from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.fetch.replica_reads import ReplicaReads
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics


class Fetch:
    def __init__(self, services: Services, partitions: Partitions, topics: Topics, calls: LeaderCalls) -> None:
        self._slices = services.slices
        network = services.settings.network
        self.fetcher = Fetcher(services, partitions.table, partitions.tick, network.max_fetch_bytes)
        self.replica_reads = ReplicaReads(services)
        self.sessions = FetchSessions(
            services.new_id,
            max_fetch_sessions=network.max_fetch_sessions,
            max_session_partitions=network.max_request_items,
        )
        self.offsets = OffsetFinder(partitions.table, services.lookups)
        self.browser = MessageBrowser(services, topics, partitions.table, self.offsets, calls)

    async def finish(self) -> None:
        """Answer all waiting requests with the available records, and end the long requests of all doors."""
        self.fetcher.finish_all()
        await self._slices.stop()
        self.fetcher.finish_all()
