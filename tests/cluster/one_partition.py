"""A topic with one partition in a cluster of processes: what is acknowledged, who leads, who is in sync."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from tests.clients import applications
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.workloads import read_all

TOPIC = "flights"
PATIENCE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    applications.until(condition, "the condition holds", PATIENCE_S)


class OnePartition:
    """The only partition of the topic. Its methods ask the brokers that are live."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def create(self, replicas: Sequence[int], config: Mapping[str, str] = MappingProxyType({})) -> "OnePartition":
        """replicas: the first one leads."""
        until(lambda: len(self.admin.list_topics(timeout=PATIENCE_S).brokers) >= len(replicas))
        topic = NewTopic(TOPIC, 1, replica_assignment=[list(replicas)], config=dict(config))
        self.admin.create_topics([topic])[TOPIC].result(PATIENCE_S)
        until(lambda: self.isr == sorted(replicas))
        return self

    def acknowledged(self, values: Iterable[str], timeout_s: float = PATIENCE_S) -> set[str]:
        """Produce with acks=all, and return the values that were acknowledged."""
        taken: set[str] = set()

        def delivered(error: KafkaError | None, message: Message) -> None:
            value = message.value()
            if error is None and value is not None:
                taken.add(value.decode())

        timeouts = {
            "message.timeout.ms": timeout_s * 1000,
            "retry.backoff.max.ms": 200,
            "reconnect.backoff.max.ms": 200,
        }
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap, "acks": "all", "log_level": 0, **timeouts})
        for value in values:
            producer.produce(TOPIC, value, on_delivery=delivered)
        producer.flush()
        return taken

    def values(self) -> list[str]:
        """Return all records."""
        return [value.decode() for value in read_all(self._cluster, TOPIC, 1).values()]

    @property
    def isr(self) -> list[int]:
        partition = self._partition()
        return [] if partition is None else sorted(partition.isrs)

    @property
    def leader(self) -> int:
        """-1: there is none."""
        partition = self._partition()
        return -1 if partition is None else partition.leader

    def _partition(self) -> PartitionMetadata | None:
        topics = self.admin.list_topics(TOPIC, timeout=PATIENCE_S).topics
        return topics[TOPIC].partitions.get(0)
