"""Members of the consumer protocol, as clients of a coordinator without a broker."""

from typing import Any
from uuid import UUID

from conveyor.groups.group_commands import ConsumerHeartbeat, DescribeConsumerGroup, UpdateTopics
from conveyor.groups.known_topics import Assigned, KnownTopic, KnownTopics
from conveyor.groups.replies import DescribedConsumerGroup, HeartbeatAnswer, TopicsUpdated
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, Coordinator

CONSUMER_SESSION_MS = 45_000
INTERVAL_MS = 5_000


def topic_id(name: str) -> UUID:
    """Return the id of a topic in these tests."""
    return UUID(bytes=name.encode().rjust(16, b"\0")[-16:])


def place(name: str, *partitions: int) -> Assigned:
    return frozenset((topic_id(name), partition) for partition in partitions)


def tell_topics(coordinator: Coordinator, **partition_counts: int) -> None:
    """Replace the coordinator's view of all topics."""
    topics = [
        KnownTopic(name=name, topic_id=topic_id(name), partition_count=count, is_internal=name.startswith("__"))
        for name, count in partition_counts.items()
    ]
    assert coordinator.ask(UpdateTopics(topics=KnownTopics(topics))) == TopicsUpdated()


def coordinator_with(partition_count: int = 4, **settings: Any) -> Coordinator:
    """Return a coordinator with one topic, `topic`."""
    coordinator = Coordinator(**settings)
    tell_topics(coordinator, topic=partition_count)
    return coordinator


def described(coordinator: Coordinator, group_id: str = GROUP) -> DescribedConsumerGroup:
    group = coordinator.ask(DescribeConsumerGroup(group_id=group_id))
    assert isinstance(group, DescribedConsumerGroup), group
    return group


class ConsumerMember:
    """A member that reads assigned partitions at once, and stops reading revoked ones at once.

    owned: the partitions that it reads. said: the partitions in its last heartbeat.
    """

    def __init__(self, coordinator: Coordinator, member_id: str, **subscription: Any) -> None:
        self.coordinator = coordinator
        self.member_id = member_id
        self.epoch = 0
        self.owned: Assigned = frozenset()
        self.subscription: dict[str, Any] = {"topics": ("topic",)} | subscription
        self._said: Assigned | None = None

    def send(self, **fields: Any) -> Any:
        """Send a heartbeat with these fields, and ignore the assignment in the answer."""
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.member_id,
            "new_member_id": f"made-for-{self.member_id}",
            "member_epoch": self.epoch,
            "client_id": "client",
            "client_host": "/127.0.0.1",
        }
        if "instance_id" in self.subscription:
            values["instance_id"] = self.subscription["instance_id"]
        return self.coordinator.ask(ConsumerHeartbeat(**values | fields))

    def join(self) -> HeartbeatAnswer:
        self.epoch, self.owned = 0, frozenset()
        return self.take(self.send(rebalance_timeout_ms=REBALANCE_MS, owned=frozenset(), **self.subscription))

    def beat(self, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat, with the owned partitions if they have changed."""
        if self.owned != self._said:
            fields = {"owned": self.owned} | fields
        return self.take(self.send(**fields))

    def take(self, answer: object) -> HeartbeatAnswer:
        assert isinstance(answer, HeartbeatAnswer), answer
        self.epoch = answer.member_epoch
        self._said = self.owned
        if answer.assignment is not None:
            self.owned = answer.assignment
        return answer

    def leave(self, epoch: int = -1) -> HeartbeatAnswer:
        answer = self.send(member_epoch=epoch)
        assert isinstance(answer, HeartbeatAnswer), answer
        self.owned = frozenset()
        return answer


def joined(coordinator: Coordinator, *member_ids: str, **subscription: Any) -> list[ConsumerMember]:
    """Return the members of a group after its rebalance."""
    members = [ConsumerMember(coordinator, member_id, **subscription) for member_id in member_ids]
    for member in members:
        member.join()
    settle(*members)
    return members


def settle(*members: ConsumerMember) -> None:
    """Send heartbeats until all members own their target assignments."""
    for _ in range(10):
        before = [(member.epoch, member.owned) for member in members]
        for member in members:
            member.beat()
        if before == [(member.epoch, member.owned) for member in members]:
            return
    raise AssertionError("the group does not settle")
