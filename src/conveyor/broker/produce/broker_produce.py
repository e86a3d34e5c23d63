"""The room of producing, assembled."""

from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.produce.leader_publisher import LeaderPublisher
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.publisher import Publisher
from conveyor.broker.produce.verification import Verifications
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics


class Produce:
    """See the module's docstring. publisher: takes batches. messages: takes single messages, for any leader."""

    def __init__(self, services: Services, partitions: Partitions, topics: Topics, calls: LeaderCalls) -> None:
        self.verifications = Verifications(services, calls)
        self.publisher = Publisher(services, partitions.table, self.verifications)
        partitions.reconciler.closed.listen(self.publisher.closed)
        services.serving.push_async_callback(self.publisher.drain)
        self.messages = MessagePublisher(
            services=services,
            topics=topics,
            partitions=partitions.table,
            publisher=LeaderPublisher(services.tasks, calls, self.publisher),
        )
