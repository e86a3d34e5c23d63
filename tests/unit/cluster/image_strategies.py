"""Hypothesis strategies for images and changes."""

from uuid import UUID

from hypothesis import strategies as st

from conveyor.cluster.changes import (
    AclAdded,
    AclRemoved,
    BrokerRegistered,
    BrokerRemoved,
    Change,
    ClusterNamed,
    ConfigPut,
    PartitionChanged,
    ProducerIdsTaken,
    QuotasPut,
    SchedulePut,
    ScheduleRemoved,
    SubscriptionPut,
    SubscriptionRemoved,
    TopicPut,
    TopicRemoved,
)
from conveyor.cluster.image import ConfigScope, PartitionImage
from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType

NAMES = st.sampled_from(["a", "b", "a.b", "__queue_state.a", "a/b", '"}], "', "ü %2F", "\x00", ""])
TEXTS = st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3)
NODES = st.integers(0, 3)
IDS = st.integers(0, 9).map(lambda number: UUID(int=number))
_NODE_LISTS = st.lists(NODES, max_size=3).map(tuple)
_EPOCHS = st.integers(-1, 2**31 - 1)
_STATES = st.builds(PartitionImage, NODES, _EPOCHS, _NODE_LISTS, _NODE_LISTS) | st.builds(
    PartitionImage,
    st.integers(-1, 3),
    _EPOCHS,
    _NODE_LISTS,
    _NODE_LISTS,
    _EPOCHS,
    _NODE_LISTS,
    st.integers(-1, 3),
    _NODE_LISTS,
    _NODE_LISTS,
    _EPOCHS,
)
_ENTITIES = st.lists(st.tuples(NAMES, st.none() | NAMES), max_size=2).map(tuple)
_ACLS = st.builds(
    Acl,
    st.sampled_from(ResourceType),
    NAMES,
    st.sampled_from(PatternType),
    NAMES,
    NAMES,
    st.sampled_from(AclOperation),
    st.sampled_from(Permission),
)
_RATES = st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False), max_size=2)

CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(ClusterNamed, cluster_id=NAMES),
    st.builds(BrokerRegistered, node_id=NODES, host=NAMES, port=st.integers(0, 65_535), rack=st.none() | NAMES),
    st.builds(
        BrokerRegistered,
        node_id=NODES,
        host=NAMES,
        port=st.integers(0, 65_535),
        incarnation=NAMES,
        broker_epoch=_EPOCHS,
        boot_id=NAMES,
        data_id=NAMES,
        is_fenced=st.booleans(),
        is_stopping=st.booleans(),
    ),
    st.builds(BrokerRemoved, node_id=NODES),
    st.builds(TopicPut, name=NAMES, topic_id=IDS, config=TEXTS, partitions=st.lists(_STATES, max_size=3).map(tuple)),
    st.builds(TopicRemoved, name=NAMES),
    st.builds(PartitionChanged, topic=NAMES, partition=st.integers(-3, 5), state=_STATES),
    st.builds(SubscriptionPut, name=NAMES, subscription_id=IDS, topic_id=IDS, document=NAMES),
    st.builds(SubscriptionRemoved, name=NAMES),
    st.builds(SchedulePut, name=NAMES, topic_id=IDS, document=NAMES),
    st.builds(ScheduleRemoved, name=NAMES),
    st.builds(QuotasPut, entity=_ENTITIES, values=_RATES),
    st.builds(ConfigPut, scope=st.sampled_from(ConfigScope), name=NAMES, texts=TEXTS),
    st.builds(AclAdded, acl=_ACLS),
    st.builds(AclRemoved, acl=_ACLS),
    st.builds(ProducerIdsTaken, next_producer_id=st.integers(0, 2**62)),
)
ENTRIES = st.lists(CHANGES, max_size=12).map(tuple)
