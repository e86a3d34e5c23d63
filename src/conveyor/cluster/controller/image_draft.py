"""The draft of one decision: an image, and the brokers and bundles that the decision has changed so far.

A bundle may be settled several times in a draft. Its leader epoch rises each time its leader changes, its partition
epoch once per decision. `changes` returns the brokers first, then each changed bundle once.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.cluster.changes import Change, broker_registered
from conveyor.cluster.controller.bundles import BundlePolicy, bundle_changes, bundle_policy, owners
from conveyor.cluster.controller.liveness import Liveness, liveness_of
from conveyor.cluster.controller.partition_transition import Election, Rules, settled
from conveyor.cluster.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import NodeId
from conveyor.settings.tree import Settings

MOST_BUNDLES = 1_000
"""The bundles that one decision changes. With names of any length, their changes fit in one entry."""


class _Changed(NamedTuple):
    topic: TopicImage
    number: int
    partition: PartitionImage


class ImageDraft:
    """See the module's docstring. most_bundles: `settle_all` stops at this number of changed bundles."""

    def __init__(self, image: ClusterImage, settings: Settings, most_bundles: int = MOST_BUNDLES) -> None:
        self.brokers = dict(image.brokers)
        self.liveness: Liveness = liveness_of(image.brokers)
        self._image = image
        self._settings = settings
        self._most_bundles = most_bundles
        self._changed: dict[tuple[str, int], _Changed] = {}
        self._policies: dict[str, BundlePolicy] = {}

    def put_broker(self, broker: BrokerImage) -> None:
        self.brokers[broker.node_id] = broker
        self.liveness = liveness_of(self.brokers)

    def partition(self, topic: TopicImage, number: int) -> PartitionImage:
        changed = self._changed.get((topic.name, number))
        return topic.partitions[number] if changed is None else changed.partition

    def bundles(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Return all bundles as this draft has them."""
        for topic in owners(self._image):
            for number in range(len(topic.partitions)):
                yield topic, number, self.partition(topic, number)

    def policy(self, topic: TopicImage) -> BundlePolicy:
        if topic.name not in self._policies:
            self._policies[topic.name] = bundle_policy(topic, self._settings)
        return self._policies[topic.name]

    def settle(
        self,
        topic: TopicImage,
        number: int,
        wanted: PartitionImage | None = None,
        *,
        election: Election = Election.CLEAN,
        lost: frozenset[NodeId] = frozenset(),
        wiped: frozenset[NodeId] = frozenset(),
        begins_epoch: bool = False,
    ) -> PartitionImage:
        """Settle a bundle and return its partition. wanted: see `settled`; by default the partition as it is. Others:
        see `Rules`.
        """
        before = self.partition(topic, number)
        rules = Rules(
            liveness=self.liveness,
            min_insync=self.policy(topic).min_insync,
            election=election,
            lost=lost,
            wiped=wiped,
            begins_epoch=begins_epoch,
        )
        after = settled(before, before if wanted is None else wanted, rules)
        if after != before:
            self._changed[topic.name, number] = _Changed(topic, number, after)
        return after

    def settle_all(self, *, may_be_unclean: bool) -> bool:
        """Settle every bundle that has no leader, or a fenced or stopping broker in its ISR.

        may_be_unclean: where `unclean.leader.election.enable` allows it. Returns False if so many bundles have changed
        that the rest is left to the next decision.
        """
        ready = self.liveness.ready
        for topic, number, partition in self.bundles():
            if partition.leader in ready and ready.issuperset(partition.isr):
                continue
            if self.is_full and (topic.name, number) not in self._changed:
                return False
            is_unclean = may_be_unclean and self.policy(topic).allows_unclean
            self.settle(topic, number, election=Election.UNCLEAN if is_unclean else Election.CLEAN)
        return True

    @property
    def is_full(self) -> bool:
        return len(self._changed) >= self._most_bundles

    def changes(self) -> list[Change]:
        """Return the changes from the image to this draft."""
        changes: list[Change] = [
            broker_registered(broker)
            for node_id, broker in self.brokers.items()
            if broker != self._image.brokers.get(node_id)
        ]
        for topic, number, partition in self._changed.values():
            if partition != topic.partitions[number]:
                changes += bundle_changes(self._image, topic, number, partition)
        return changes
