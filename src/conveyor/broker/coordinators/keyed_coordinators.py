"""Coordinators of keys: the leader of a partition of an internal topic coordinates the keys of that partition."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import ClassVar

from conveyor.broker.answers import Answer
from conveyor.broker.coordinators.coordinators import Coordinators, Runner
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import BrokerImage, TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.state_machine import Command

_UNAVAILABLE = (
    ErrorKind.PARTITION_OFFLINE,
    ErrorKind.DISK_FULL,
    ErrorKind.NOT_ENOUGH_REPLICAS,
    ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorKind.REQUEST_TIMED_OUT,
)
"""Kafka's coordinator, too, answers all of these with COORDINATOR_NOT_AVAILABLE, and its clients repeat the request."""


class KeyedCoordinators(Coordinators[Runner]):
    """See the module's docstring. topic: the internal topic. factor_setting: the setting with the number of its
    replicas.
    """

    topic: ClassVar[str]
    factor_setting: ClassVar[str]

    def __init__(self, services: Services, table: PartitionTable, topics: Topics) -> None:
        super().__init__(services, table)
        self._topics = topics

    async def ensured(self) -> TopicImage:
        """Return the internal topic, created if it does not exist. Raises RequestError."""
        try:
            with as_coordinator():
                return await self._topics.ensure(self._services.own_caller, TopicRequest(name=self.topic))
        except RequestError as error:
            if error.kind is not ErrorKind.INVALID_REPLICATION_FACTOR:
                raise
            raise RequestError(
                ErrorKind.COORDINATOR_NOT_AVAILABLE,
                f"{self.topic} is not created yet, see {self.factor_setting}: {error.message}",
            ) from error

    async def find_coordinator(self, caller: Caller, key: str) -> BrokerImage:
        """Return the broker that coordinates a key. Creates the topic if it is missing. Raises RequestError."""
        partition, metadata = await self.ensured_partition(key), self._services.metadata
        image = metadata.image.partition(*partition)
        leader = None if image is None else metadata.image.brokers.get(image.leader)
        if leader is None:
            raise RequestError(
                ErrorKind.COORDINATOR_NOT_AVAILABLE, f"no broker leads {partition} at the moment: ask again"
            )
        return leader

    async def ensured_partition(self, key: str) -> TopicPartition:
        """Return the partition of a key. Creates the topic if it is missing. Raises RequestError."""
        topic = await self.ensured()
        return TopicPartition(self.topic, partition_for_key(key, len(topic.partitions)))

    def partition_of(self, key: str) -> TopicPartition | None:
        """Return the partition of a key; None if the topic does not exist."""
        count = self.partition_count()
        return TopicPartition(self.topic, partition_for_key(key, count)) if count else None

    def partition_count(self) -> int:
        """Return the number of partitions; 0 if the topic does not exist."""
        topic = self._services.metadata.image.topics.get(self.topic)
        return 0 if topic is None else len(topic.partitions)

    async def coordinator(self, number: int) -> Runner:
        """Return the coordinator of a partition, which must be this broker. Raises NotLeader."""
        return await self.loaded(self._table.find(self.topic, number))

    async def list_keys(
        self, keys: Callable[[Runner], Collection[str]], listing: Callable[[tuple[str, ...]], Command[Answer]]
    ) -> list[Answer]:
        """Ask every coordinator on this broker about its keys, a page of them in each slice. Raises RequestError."""
        replies: list[Answer] = []
        for number in range(self.partition_count()):
            found: list[Answer] = []
            try:
                with as_coordinator():
                    coordinator = await self.coordinator(number)
                    listed = tuple(keys(coordinator))
                    for start in range(0, max(1, len(listed)), SLICE_ITEMS):  # One without keys may refuse, too.
                        await self._services.slices.turn()
                        found.append(await coordinator.ask(listing(listed[start : start + SLICE_ITEMS])))
            except RequestError as error:
                if error.kind is not ErrorKind.NOT_COORDINATOR:
                    raise
                continue
            replies += found
        return replies


@contextmanager
def as_coordinator() -> Iterator[None]:
    """Raise the errors of a partition as those of its coordinator."""
    try:
        yield
    except RequestError as error:
        raise coordinator_error(error) from None  # It may be the same error, which would be its own cause.


def coordinator_error(error: RequestError) -> RequestError:
    """Return the error that makes a client of a coordinator retry, or find the coordinator again."""
    if error.kind is ErrorKind.NOT_LEADER:
        return RequestError(ErrorKind.NOT_COORDINATOR, error.message)
    if error.kind in _UNAVAILABLE:
        return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, error.message)
    return error
