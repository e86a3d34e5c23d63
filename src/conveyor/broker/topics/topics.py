"""Changes the topics of the cluster: `cluster` decides, the metadata stores the decision, the reconciler applies it.

Each call returns once the reconciler has applied the image that shows its change, and the leaders of new partitions on
other brokers have opened them, so the returned topic is served. A change that was proposed is completed, even if its
caller is cancelled.
"""

import logging
from collections.abc import Mapping, Sequence

from conveyor.broker.metadata.metadata import Decide
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.cluster_operations import ClusterOperations
from conveyor.broker.topics.new_leaders import NewLeaders
from conveyor.broker.topics.partition_leader import PartitionLeaders
from conveyor.broker.topics.shown_brokers import ShownBrokers
from conveyor.broker.topics.topic_offsets import TopicOffsets
from conveyor.cluster.changes import Change
from conveyor.cluster.image import OFFSETS_TOPIC, ClusterImage, TopicImage, companion, is_internal
from conveyor.cluster.topic_change import ConfigChange, changed_config, check_more_partitions, replaced_config
from conveyor.cluster.topic_creation import TopicOutline, TopicRequest, outline_topic
from conveyor.cluster.topic_decisions import (
    changed_topic,
    created_topic,
    deleted_topic,
    ensured_companion,
    existing_topic,
    grown_topic,
    mended_topics,
    owned_by_broker,
)
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)


class Topics:
    """See the module's docstring. Every method except `start` raises RequestError.

    offsets, leaders, shown_brokers: describe topics and the cluster. operations: change the cluster.
    """

    def __init__(
        self, services: Services, partitions: Partitions, subscriptions: Subscriptions, calls: LeaderCalls
    ) -> None:
        self.offsets = TopicOffsets(calls, partitions.table, services.clock)
        self.leaders = PartitionLeaders(services, partitions.table)
        self.shown_brokers = ShownBrokers(services)
        self.operations = ClusterOperations(services, partitions.table)
        self._services = services
        self._metadata = services.metadata
        self._subscriptions = subscriptions
        self._new_id = services.new_id
        self._reconciler = partitions.reconciler
        self._new_leaders = NewLeaders(calls)

    @property
    def settings(self) -> Settings:
        return self._services.settings

    async def start(self) -> None:
        """Restore the mandatory settings of topics, and serve all topics. Raises StorageFailure."""
        try:
            await self._mend()
        except RequestError as error:
            raise StorageFailure(error.message) from error
        await self._reconciler.start()
        await self._grow_offsets_topic()

    def existing(self, name: str) -> TopicImage:
        """Return the topic of this name. Raises RequestError (UNKNOWN_TOPIC)."""
        return existing_topic(self._metadata.image, name)

    async def served(self, name: str) -> TopicImage:
        """Return a topic once its partitions are open here, or failed to open; the metadata may show it earlier.

        Raises RequestError (UNKNOWN_TOPIC).
        """
        topic = self.existing(name)
        await self._reconciler.opened(topic)
        return topic

    def is_served(self, topic: TopicImage) -> bool:
        """Return whether the partitions of this image of a topic are open here, or failed to open."""
        return self._reconciler.has_applied(topic)

    def check(self, request: TopicRequest, others: int = 0) -> TopicOutline:
        """Return the outline of the topic that `create` would create. Nothing is assigned for it.

        others: partitions that the cluster gets besides.
        """
        return outline_topic(self._metadata.image, request, self.settings, TopicId(self._new_id()), others)

    async def create(self, caller: Caller, request: TopicRequest) -> TopicImage:
        after = await self._change(lambda image: created_topic(image, request, self.settings, self._new_id))
        topic = existing_topic(after, request.name)
        await self._new_leaders.opened(caller, topic.partitions)
        log.info(
            "topic created name=%s partitions=%d id=%s caller=%s",
            topic.name, len(topic.partitions), topic.topic_id, caller,
        )  # fmt: skip
        return topic

    async def ensure(self, caller: Caller, request: TopicRequest) -> TopicImage:
        """Return the topic, created if it does not exist."""
        if request.name in self._metadata.image.topics:
            return await self.served(request.name)

        def decide(image: ClusterImage) -> Sequence[Change]:
            return [] if request.name in image.topics else created_topic(image, request, self.settings, self._new_id)

        topic = existing_topic(await self._change(decide), request.name)
        await self._new_leaders.opened(caller, topic.partitions)
        return topic

    async def ensure_companion(self, kind: str, name: str) -> TopicImage:
        """Return a companion of a topic, created if it does not exist. The companion's owner trims its records.

        Raises RequestError: also INVALID_TOPIC, if the companion's name would be too long.
        """
        after = await self._change(lambda image: ensured_companion(image, kind, name, self.settings, self._new_id))
        return existing_topic(after, companion(kind, name))

    async def change_config(
        self, caller: Caller, name: str, changes: Sequence[ConfigChange], *, check_only: bool = False
    ) -> None:
        """Change some settings of a topic."""
        await self._change(
            lambda image: changed_topic(
                image, name, lambda topic: changed_config(topic, changes, self.settings), self.settings
            ),
            check_only,
        )

    async def replace_config(
        self, caller: Caller, name: str, config: Mapping[str, str], *, check_only: bool = False
    ) -> None:
        """Set these settings of a topic, and reset all others to the defaults."""
        await self._change(
            lambda image: changed_topic(
                image, name, lambda topic: replaced_config(topic, config, self.settings), self.settings
            ),
            check_only,
        )

    def check_partitions(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None, others: int = 0
    ) -> int:
        """Return how many partitions `add_partitions` would add to the cluster. Nothing is assigned for them.

        others: partitions that the cluster gets besides.
        """
        if is_internal(name):
            raise owned_by_broker(name)
        image = self._metadata.image
        topic = existing_topic(image, name)
        added = check_more_partitions(image, topic, count, assignment, self.settings, others)
        self._subscriptions.check_growth(topic, count)
        return added

    async def add_partitions(
        self, caller: Caller, name: str, count: int, assignment: Sequence[Sequence[int]] | None
    ) -> None:
        """Add partitions to a topic until there are `count`."""
        if is_internal(name):
            raise owned_by_broker(name)
        present = len(self.existing(name).partitions)

        def decide(image: ClusterImage) -> Sequence[Change]:
            changes = grown_topic(image, name, count, assignment, self.settings)
            self._subscriptions.check_growth(existing_topic(image, name), count)
            return changes

        after = await self._change(decide)
        await self._new_leaders.opened(caller, existing_topic(after, name).partitions[present:])

    async def delete(self, caller: Caller, name: str) -> None:
        """Delete a topic, the broker's companions of it, its subscriptions and schedules, and their records.

        If files cannot be removed now, the next start removes them or sets them aside.
        """
        topic = self.existing(name)
        while self._metadata.image.topic_by_id(topic.topic_id) is not None:
            await self._change(lambda image: deleted_topic(image, name, topic.topic_id))
        await self._reconciler.removed()
        log.info("topic deleted name=%s id=%s caller=%s", name, topic.topic_id, caller)

    async def _change(self, decide: Decide, check_only: bool = False) -> ClusterImage:
        """Propose a decision. Returns the image that shows it, once this broker has applied the image."""
        if check_only:
            decide(self._metadata.image)
            return self._metadata.image
        image = await self._metadata.propose(decide)
        await self._metadata.applied.settled(image.seq)
        return image

    async def _mend(self) -> None:
        """Restore the mandatory settings of the broker's own topics and of delayed topics."""
        before = self._metadata.image
        after = await self._metadata.propose_all(mended_topics)
        for topic in after.topics.values():
            was = before.topics.get(topic.name)
            if was is not None and was.config != topic.config:
                log.warning(
                    "topic settings mended name=%s config=%s was=%s", topic.name, dict(topic.config), dict(was.config)
                )

    async def _grow_offsets_topic(self) -> None:
        """Add partitions to the groups' topic as configured, while it is empty.

        Later the number must not change: it determines the partition of each group.
        """
        topic, wanted = self._metadata.image.topics.get(OFFSETS_TOPIC), self.settings.groups.offsets_partitions
        if topic is None or len(topic.partitions) == wanted:
            return
        reason = "groups would lose their committed offsets"
        if self._metadata.session.is_embedded and self._reconciler.partitions.is_empty(topic):
            try:
                await self._change(lambda image: grown_topic(image, topic.name, wanted, None, self.settings))
                return
            except RequestError as error:
                reason = error.message
        log.warning(
            "topic partitions kept name=%s partitions=%d groups.offsets_partitions=%d reason=%s",
            topic.name, len(topic.partitions), wanted, reason,
        )  # fmt: skip
