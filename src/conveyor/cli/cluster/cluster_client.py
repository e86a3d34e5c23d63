"""The Kafka client of the cluster commands: the cluster as an image, reassignments, elections, settings.

It is kafka-python, because confluent-kafka has no reassignments.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.cli.terminal.kafka_python import ask_any_broker, errors_of_kafka_python, kafka_python_admin
from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.cluster.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId

Place = tuple[str, int]
Refusals = Mapping[Place, str]
"""The reasons of the refused requests, by topic and partition."""

_NOT_NEEDED = 84
_PAGE_PARTITIONS = 2000


class _AllBrokers(str):
    """The empty name of the resource of all brokers. kafka-python sends it to the broker whose id it gets from here."""

    def __new__(cls, node_id: int) -> Self:
        resource = super().__new__(cls, "")
        resource._node_id = node_id
        return resource

    _node_id: int

    def __int__(self) -> int:
        return self._node_id


class ClusterClient:
    """See the module's docstring. Every method raises ClientError."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def image(self) -> tuple[ClusterImage, NodeId]:
        """Return the brokers and topics, and the id of the controller. Replicas are as the reassignments have them."""
        described = ask_any_broker(self._admin.describe_cluster)
        topics = self._described_topics()
        brokers = [_broker(broker) for broker in described["brokers"]]
        moving = self.reassignments()
        image = ClusterImage(
            cluster_id=described["cluster_id"],
            brokers={broker.node_id: broker for broker in brokers},
            topics={name: _topic(topics[name], moving) for name in sorted(topics)},
        )
        return image, NodeId(described["controller_id"])

    def reassignments(self) -> dict[Place, Any]:
        """Return the reassignments in progress: `replicas`, `adding_replicas` and `removing_replicas`."""
        listed = ask_any_broker(self._admin.list_partition_reassignments)
        return {(place.topic, place.partition): replicas for place, replicas in listed.items()}

    def reassign(self, plan: Sequence[Reassignment]) -> Refusals:
        """Start, change or cancel reassignments."""
        from kafka import TopicPartition

        wanted = {
            TopicPartition(item.topic, item.partition): None if item.target is None else list(item.target)
            for item in plan
        }
        with errors_of_kafka_python():
            results = self._admin.alter_partition_reassignments(wanted)
        return {
            (place.topic, place.partition): error.description for place, error in results.items() if error is not None
        }

    def elect(self, places: Sequence[Place], *, unclean: bool) -> Refusals:
        """Elect leaders. A partition that needs no election is not refused."""
        partitions: dict[str, list[int]] = {}
        for topic, number in places:
            partitions.setdefault(topic, []).append(number)
        with errors_of_kafka_python():
            answer = self._admin.elect_leaders(int(unclean), partitions, raise_errors=False)
        if answer.error_code:
            raise ClientError(f"the broker refused the elections: error {answer.error_code}")
        return {
            (topic.topic, result.partition_id): result.error_message
            for topic in answer.replica_election_results
            for result in topic.partition_result
            if result.error_code not in (0, _NOT_NEEDED)
        }

    def unregister(self, node_id: NodeId) -> None:
        """Remove a broker that is fenced and holds no replicas."""
        from conveyor.cli.cluster.unregister_messages import UnregisterBrokerRequest

        with errors_of_kafka_python():
            # kafka-python has no method for it.
            answer = self._admin._manager.run(self._admin._manager.send, UnregisterBrokerRequest(broker_id=node_id))  # noqa: SLF001
        if answer.error_code:
            raise ClientError(answer.error_message or f"the broker refused: error {answer.error_code}")

    def settings(self) -> dict[str, str]:
        """Return the settings that were changed for all brokers, by name."""
        with errors_of_kafka_python():
            described = self._admin.describe_configs([self._all_brokers(None)], config_filter="all")
        return {name: entry["value"] for name, entry in sorted(described["broker"][""].items())}

    def change_settings(self, values: Mapping[str, str | None]) -> None:
        """Change settings for all brokers; None: to no value of all brokers."""
        changes = {name: ("DELETE" if value is None else "SET", value) for name, value in values.items()}
        with errors_of_kafka_python():
            results = self._admin.alter_configs([self._all_brokers(changes)], raise_on_unknown=False, incremental=True)
        if (result := results["broker"][""]) != "OK":
            raise ClientError(result.partition("Error: ")[2] or result)

    def _described_topics(self) -> dict[str, Any]:
        """Return all topics, by name. The metadata of a topic, which consumers get, lacks the eligible replicas."""
        found: dict[str, Any] = {}
        cursor = None
        while True:
            page = ask_any_broker(partial(self._admin.describe_topic_partitions, [], _PAGE_PARTITIONS, cursor))
            for topic in page["topics"]:
                found.setdefault(topic["name"], topic | {"partitions": []})["partitions"].extend(topic["partitions"])
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def _all_brokers(self, configs: Any) -> Any:
        from kafka.admin import ConfigResource, ConfigResourceType

        controller_id = ask_any_broker(self._admin.describe_cluster)["controller_id"]
        return ConfigResource(ConfigResourceType.BROKER, _AllBrokers(controller_id), configs)


def require_broker(image: ClusterImage, broker: int) -> NodeId:
    """Return the id of a broker in the list. Raises ClientError."""
    if broker not in image.brokers:
        raise ClientError(f"there is no broker {broker}: see 'conveyor cluster brokers'")
    return NodeId(broker)


@contextmanager
def cluster_client(bootstrap: str) -> Iterator[ClusterClient]:
    """Connect to the cluster. Raises ClientError if no broker answers."""
    with kafka_python_admin(bootstrap) as admin:
        yield ClusterClient(admin)


def _broker(described: Mapping[str, Any]) -> BrokerImage:
    return BrokerImage(
        node_id=NodeId(described["broker_id"]),
        host=described["host"],
        port=described["port"],
        rack=described["rack"],
        is_fenced=described.get("is_fenced", False),
    )


def _topic(described: Mapping[str, Any], moving: Mapping[Place, Any]) -> TopicImage:
    name = described["name"]
    partitions = sorted(described["partitions"], key=lambda partition: partition["partition_index"])
    return TopicImage(
        name=name,
        topic_id=TopicId(described["topic_id"]),
        partitions=tuple(_partition(item, moving.get((name, item["partition_index"]))) for item in partitions),
    )


def _partition(described: Mapping[str, Any], moving: Mapping[str, Any] | None) -> PartitionImage:
    replicas = _nodes(described["replica_nodes"])
    adding, removing = (
        (set(moving["adding_replicas"]), set(moving["removing_replicas"])) if moving else (set[int](), set[int]())
    )
    return PartitionImage(
        leader=NodeId(described["leader_id"]),
        leader_epoch=LeaderEpoch(described["leader_epoch"]),
        replicas=replicas,
        isr=_nodes(described["isr_nodes"]),
        elr=_nodes(described["eligible_leader_replicas"] or ()),
        origin=tuple(node for node in replicas if node not in adding) if moving else (),
        target=tuple(node for node in replicas if node not in removing) if moving else (),
    )


def _nodes(ids: Sequence[int]) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, ids))
