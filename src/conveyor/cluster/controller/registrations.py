"""Decides which brokers are registered, fenced and removed: the difference between the observed registrations and the
image.

    broker in the image     observed                        steps
    live                    the same epoch                  none
    live                    nothing                         fence
    live                    another epoch (it was away)     fence, forget, register
    fenced, or none         any epoch                       forget, register

    fence       the broker leaves ISRs and leads nothing; a leader epoch begins for each bundle that it led, even if it
                is back in the same observation (KIP-380, KAFKA-7235)
    forget      the broker leaves the ISRs and ELRs for whose records its data directory cannot answer; see `Doubt`. A
                directory that is not the one that has registered last is LOST as a whole
    register    the broker is live and not stopping; bundles without a leader elect one

The steps of all brokers run in this order: unclean elections are held only after the returning brokers are live. A
broker is registered only after every bundle has forgotten what it lost. A decision may stop at MOST_BUNDLES; called
again on its result it continues, and returns nothing once all is done.

Gateways are registered, too, and ignored: see `is_gateway`.

The directory of a broker that a version without clusters has stored is unknown, and counts as the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum, auto
from uuid import UUID

import msgspec

from conveyor.cluster.changes import BrokerRemoved, Change
from conveyor.cluster.controller.bundles import bundle_by_id
from conveyor.cluster.controller.image_draft import MOST_BUNDLES, ImageDraft
from conveyor.cluster.image import BrokerEndpoint, BrokerImage, ClusterImage, PartitionImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicId, is_gateway
from conveyor.settings.tree import Settings


class Doubt(IntEnum):
    """The evidence of a data directory against one of its logs.

    DAMAGED     batches were removed, which may have been committed, or the log cannot be opened yet: the broker stays
                if it is the last member
    UNPROVEN    committed records may be missing, for example after a power failure with `flush.policy=os`: it stays if
                it is the only replica
    LOST        the log, or its end, is missing: it leaves, and an unclean election prefers other replicas
    """

    DAMAGED = auto()
    UNPROVEN = auto()
    LOST = auto()


class DoubtfulBundles(msgspec.Struct, frozen=True, array_like=True):
    """The partitions, by topic ids, of the bundles that have logs with this doubt. A bundle is named by its owner.

    After a power failure all bundles may be doubtful: a registration must fit into a node of the store even so.
    """

    doubt: Doubt
    partitions: dict[UUID, list[int]]


def doubtful_bundles(doubts: Mapping[tuple[TopicId, int], Doubt]) -> tuple[DoubtfulBundles, ...]:
    """Group doubts, by topic id and partition, for a registration."""
    grouped: dict[Doubt, defaultdict[UUID, list[int]]] = {doubt: defaultdict(list) for doubt in Doubt}
    for (topic_id, number), doubt in doubts.items():
        grouped[doubt][topic_id].append(number)
    return tuple(DoubtfulBundles(doubt, dict(partitions)) for doubt, partitions in grouped.items() if partitions)


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The entry that a live broker has stored about itself; see `BrokerImage`.

    broker_epoch: of the node's creation, higher than that of any earlier node. past_incarnations: under which the data
    directory has registered, or has tried to; see `replica_facts`. doubts: found when the broker started, until it is
    registered. lock_id: see `BrokerPorts`.
    """

    node_id: NodeId
    host: str
    port: int
    rack: str | None = None
    incarnation: str
    broker_epoch: int
    boot_id: str
    data_id: str
    past_incarnations: tuple[str, ...] = ()
    doubts: tuple[DoubtfulBundles, ...] = ()
    lock_id: str = ""
    peer_host: str = ""
    peer_port: int = 0
    http_url: str = ""
    listeners: dict[str, BrokerEndpoint] = {}


def observed_brokers(
    image: ClusterImage, registrations: Iterable[Registration], settings: Settings, most_bundles: int = MOST_BUNDLES
) -> list[Change]:
    """Return the changes that bring the image to the observed registrations."""
    draft = ImageDraft(image, settings, most_bundles)
    newest = _newest(image, registrations)
    _fence(draft, newest)
    if not draft.settle_all(may_be_unclean=False):
        return draft.changes()
    returning = [item for item in newest.values() if _is_absent(draft, item.node_id)]
    if not _forget(draft, returning):
        return draft.changes()
    for item in returning:
        draft.put_broker(_broker(item))
    draft.settle_all(may_be_unclean=True)
    return draft.changes()


def without_lost(
    image: ClusterImage, node: NodeId, bundles: Iterable[tuple[TopicId, int]], settings: Settings
) -> list[Change]:
    """Let a broker with an embedded store, which never registers, leave the ISRs of bundles with lost logs.

    Stops at MOST_BUNDLES; called again on its result it continues.
    """
    draft = ImageDraft(image, settings)
    for topic_id, number in bundles:
        if draft.is_full:
            break
        bundle = bundle_by_id(image, topic_id, number)
        if bundle is not None and _leaves(bundle[1], node, Doubt.LOST):
            draft.settle(bundle[0], number, lost=frozenset({node}), wiped=frozenset({node}))
    return draft.changes()


def removed_broker(image: ClusterImage, node_id: NodeId) -> list[Change]:
    """Remove a fenced broker forever.

    Raises RequestError: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST if it is live or holds replicas.
    """
    broker = registered_broker(image, node_id)
    if not broker.is_fenced:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"broker {node_id} is live: stop it first")
    held = sum(
        node_id in (*partition.replicas, *partition.origin)
        for topic in image.topics.values()
        for partition in topic.partitions
    )
    if held:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"broker {node_id} holds {held} partitions: reassign them first")
    return [BrokerRemoved(node_id=node_id)]


def registered_broker(image: ClusterImage, node_id: NodeId) -> BrokerImage:
    """Return a broker. Raises RequestError (BROKER_ID_NOT_REGISTERED)."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise RequestError(ErrorKind.BROKER_ID_NOT_REGISTERED, f"there is no broker {node_id}")
    return broker


def check_broker_epoch(image: ClusterImage, node_id: NodeId, broker_epoch: int) -> BrokerImage:
    """Return a broker that is live in this epoch.

    Raises RequestError: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    broker = registered_broker(image, node_id)
    if broker.is_fenced or broker.broker_epoch != broker_epoch:
        raise RequestError(
            ErrorKind.STALE_BROKER_EPOCH, f"the registration {broker_epoch} of broker {node_id} has ended"
        )
    return broker


def _newest(image: ClusterImage, registrations: Iterable[Registration]) -> dict[NodeId, Registration]:
    """Return the registration of each broker: that of the highest epoch. One that the image has outlived is dead."""
    return {
        item.node_id: item
        for item in sorted(registrations, key=lambda item: item.broker_epoch)
        if not is_gateway(item.node_id)
        and (item.node_id not in image.brokers or item.broker_epoch >= image.brokers[item.node_id].broker_epoch)
    }


def _fence(draft: ImageDraft, newest: Mapping[NodeId, Registration]) -> None:
    for broker in list(draft.brokers.values()):
        observed = newest.get(broker.node_id)
        if not broker.is_fenced and (observed is None or observed.broker_epoch != broker.broker_epoch):
            draft.put_broker(replace(broker, is_fenced=True))


def _is_absent(draft: ImageDraft, node_id: NodeId) -> bool:
    broker = draft.brokers.get(node_id)
    return broker is None or broker.is_fenced


def _forget(draft: ImageDraft, returning: Iterable[Registration]) -> bool:
    """Returns False if the rest is left to the next decision."""
    wiped = {item.node_id for item in returning if _is_wiped(draft.brokers.get(item.node_id), item)}
    doubts: defaultdict[tuple[UUID, int], dict[NodeId, Doubt]] = defaultdict(dict)
    for item in returning:
        for bundles in item.doubts:
            for topic_id, numbers in bundles.partitions.items():
                for number in numbers:
                    doubts[topic_id, number][item.node_id] = bundles.doubt
    if not wiped and not doubts:
        return True
    for topic, number, partition in draft.bundles():
        found = doubts.get((topic.topic_id, number), {}) | dict.fromkeys(wiped, Doubt.LOST)
        leaving = _leaving(partition, found)
        if leaving and draft.is_full:
            return False
        if leaving:
            lost = frozenset(node for node, doubt in leaving.items() if doubt is Doubt.LOST)
            draft.settle(topic, number, lost=frozenset(leaving), wiped=lost)
    return True


def _leaving(partition: PartitionImage, found: Mapping[NodeId, Doubt]) -> dict[NodeId, Doubt]:
    """Return the brokers that leave. Of members that are all to leave at once, one with a damaged log stays."""
    leaving = {node: doubt for node, doubt in found.items() if _leaves(partition, node, doubt)}
    damaged = [node for node in partition.replicas if leaving.get(node) is Doubt.DAMAGED]
    if damaged and leaving.keys() >= {*partition.isr, *partition.elr}:
        del leaving[damaged[0]]
    return leaving


def _leaves(partition: PartitionImage, node: NodeId, doubt: Doubt) -> bool:
    is_member = node in (*partition.isr, *partition.elr)
    if doubt is Doubt.LOST:
        return is_member or node == partition.last_known_leader
    return is_member and (doubt is Doubt.DAMAGED or len(partition.replicas) > 1)


def _is_wiped(known: BrokerImage | None, item: Registration) -> bool:
    """Return whether a data directory is new, or an older copy of the one that has registered last."""
    return known is not None and known.incarnation not in ("", *item.past_incarnations)


def _broker(item: Registration) -> BrokerImage:
    return BrokerImage(
        node_id=item.node_id,
        host=item.host,
        port=item.port,
        rack=item.rack,
        incarnation=item.incarnation,
        broker_epoch=item.broker_epoch,
        boot_id=item.boot_id,
        data_id=item.data_id,
        peer_host=item.peer_host,
        peer_port=item.peer_port,
        http_url=item.http_url,
        listeners=item.listeners,
    )
