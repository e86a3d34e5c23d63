"""The internal topic of one kind of coordinators: the leader of a partition coordinates the keys of that partition."""

from collections.abc import Iterator
from contextlib import contextmanager

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import BrokerImage, TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError

_UNAVAILABLE = (
    ErrorKind.PARTITION_OFFLINE,
    ErrorKind.DISK_FULL,
    ErrorKind.NOT_ENOUGH_REPLICAS,
    ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorKind.REQUEST_TIMED_OUT,
)
"""Kafka's coordinator, too, answers all of these with COORDINATOR_NOT_AVAILABLE, and its clients repeat the request."""


class CoordinatorTopic:
    """See the module's docstring. factor_setting: the setting with the number of its replicas."""

    def __init__(self, name: str, factor_setting: str, metadata: Metadata, topics: Topics) -> None:
        self.name = name
        self._factor_setting = factor_setting
        self._metadata = metadata
        self._topics = topics

    async def ensured(self) -> TopicImage:
        """Return the topic, created if it does not exist. Raises RequestError."""
        try:
            with as_coordinator():
                return await self._topics.ensure(TopicRequest(name=self.name))
        except RequestError as error:
            if error.kind is not ErrorKind.INVALID_REPLICATION_FACTOR:
                raise
            raise RequestError(
                ErrorKind.COORDINATOR_NOT_AVAILABLE,
                f"{self.name} is not created yet, see {self._factor_setting}: {error.message}",
            ) from error

    async def coordinator_of(self, key: str) -> BrokerImage:
        """Return the broker that coordinates a key. Creates the topic if it is missing. Raises RequestError."""
        topic = await self.ensured()
        number = partition_for_key(key, len(topic.partitions))
        leader = self._metadata.image.brokers.get(topic.partitions[number].leader)
        if leader is None:
            raise RequestError(
                ErrorKind.COORDINATOR_NOT_AVAILABLE,
                f"no broker leads {self.name}-{number} at the moment: ask again",
            )
        return leader

    def partition_count(self) -> int:
        """Return the number of partitions; 0 if the topic does not exist."""
        topic = self._metadata.image.topics.get(self.name)
        return 0 if topic is None else len(topic.partitions)

    def partition_number(self, key: str) -> int:
        """Return the partition of a key; -1 if the topic does not exist."""
        count = self.partition_count()
        return partition_for_key(key, count) if count else -1


@contextmanager
def as_coordinator() -> Iterator[None]:
    """Raise the errors of a partition as those of its coordinator."""
    try:
        yield
    except RequestError as error:
        raise coordinator_error(error) from error


def coordinator_error(error: RequestError) -> RequestError:
    """Return the error that makes a client of a coordinator retry, or find the coordinator again."""
    if error.kind is ErrorKind.NOT_LEADER:
        return RequestError(ErrorKind.NOT_COORDINATOR, error.message)
    if error.kind in _UNAVAILABLE:
        return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, error.message)
    return error
