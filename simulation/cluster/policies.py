"""The settings of topics by which replicas must agree, as the stored image has them.

A broker may apply a change later than it is stored. Records that were committed while a leader had `flush.policy=os`
may be unflushed for some time under `ack`, too: until a replica has flushed all that it had when the last broker
applied the change, and its data directory says so; see `replica_checkpoint`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.replica_checkpoint import key_of
from conveyor.cluster.controller.bundles import BundlePolicy, bundle_policy, owners
from conveyor.cluster.dynamic_config import as_given, broker_owner, with_broker_texts
from conveyor.cluster.image import ClusterImage, ConfigOwner, Texts, TopicImage
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.settings.tree import Settings, topic_settings

_OF_ALL: ConfigOwner = broker_owner(None)


@dataclass(slots=True)
class _Switch:
    """A change of a bundle to `ack`. flushed: replicas that have flushed the rest. rests: what others must flush."""

    flushed: set[NodeId] = field(default_factory=set)
    rests: dict[NodeId, int] = field(default_factory=dict)


class Policies:
    """See the module's docstring. given: the settings of all brokers at their starts."""

    def __init__(self, given: Settings) -> None:
        self._given = as_given(given)
        self._texts: Texts | None = None
        self._in_force = given
        self._switches: dict[TopicPartition, _Switch] = {}

    def of(self, topic: TopicImage) -> BundlePolicy:
        """Return the policy of a topic of the present image."""
        return bundle_policy(topic, self._in_force)

    def is_soft(self, topic: TopicImage) -> bool:
        """Return whether a topic of the present image has `flush.policy=os`. A companion has `ack`."""
        return topic_settings(self._in_force.topics, topic.config).flush_policy == "os"

    def stored(self, old: ClusterImage, new: ClusterImage) -> list[str]:
        """Note a new image at the moment at which it is stored. Returns the topics whose `flush.policy` has changed."""
        texts = new.configs.get(_OF_ALL)
        if texts is self._texts and old.topics is new.topics:
            return []
        changed = [
            (topic, self.is_soft(before))
            for topic in owners(new)
            if (before := old.topics.get(topic.name)) is not None
            and (texts is not self._texts or before.config is not topic.config)
        ]
        if texts is not self._texts:
            self._texts = texts
            self._in_force = with_broker_texts(self._given, None, texts or {}).in_force
        switched = [topic for topic, was_soft in changed if was_soft != self.is_soft(topic)]
        for topic in switched:
            for number in range(len(topic.partitions)):
                self._switches[TopicPartition(topic.name, number)] = _Switch()
        return [topic.name for topic in switched]

    def forget(self, names: Collection[str]) -> None:
        """Forget deleted topics."""
        self._switches = {place: switch for place, switch in self._switches.items() if place.topic not in names}

    def keeps_unflushed(self, identity: TopicPartition, topic: TopicImage, node_id: NodeId) -> bool:
        """Return whether a replica may have committed records that are not flushed."""
        switch = self._switches.get(identity)
        return self.is_soft(topic) or (switch is not None and node_id not in switch.flushed)

    def look(self, nodes: Iterable[BrokerNode]) -> None:
        """Note what the replicas have flushed since the last changes."""
        brokers = list(nodes) if self._switches else []
        for identity, switch in self._switches.items():
            replicas = [
                (broker, partition)
                for broker in brokers
                if (partition := broker.partitions.table.get(*identity)) is not None
            ]
            if any(partition.log.topic.flush_policy != "ack" for _, partition in replicas):
                switch.rests.clear()
                continue
            for broker, partition in replicas:
                node_id, log = NodeId(broker.settings.broker.node_id), partition.log
                is_flushed = log.flushes.flushed_offset >= switch.rests.setdefault(node_id, log.log_end_offset)
                if is_flushed and not broker.partitions.logs.checkpoint.is_marked(key_of(partition)):
                    switch.flushed.add(node_id)
