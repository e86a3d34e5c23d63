"""The metadata of versions before the metadata log: it is read unless it is damaged."""

import json
from collections.abc import Mapping
from uuid import UUID

import pytest

from conveyor.cluster.changes import fold
from conveyor.cluster.image import ClusterImage, ConfigScope
from conveyor.cluster.legacy_tree import changes_of
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import TopicId

T_ID, OTHER_ID = UUID(int=1), UUID(int=2)
PARTITION = {"leader": 1, "leader_epoch": 3, "replicas": [1], "isr": [1]}


def topic(topic_id: UUID, **config: str) -> object:
    return {"id": str(topic_id), "config": config, "partitions": [PARTITION, PARTITION]}


def subscription(topic_name: str, topic_id: UUID) -> object:
    return {
        "id": str(UUID(int=9)), "name": "s", "topic": topic_name, "topic_id": str(topic_id),
        "start": {"kind": "latest"},
        "partition_count": 2, "policy": {"filter": "tag == 'ü'"},
    }  # fmt: skip


def schedule(topic_name: str, topic_id: UUID | None) -> object:
    identity = {} if topic_id is None else {"topic_id": str(topic_id)}
    return {"topic": topic_name, **identity, "cron": "* * * * *", "time_zone": "UTC", "payload": "", "fired_ms": 5}


def nodes_of(documents: Mapping[str, object]) -> dict[str, bytes]:
    return {path: json.dumps(document).encode() for path, document in documents.items()}


TREE = nodes_of(
    {
        "/topics/t": topic(T_ID, **{"segment.ms": "5"}),
        "/topics/__queue_state.t": topic(OTHER_ID),
        "/topics/__consumer_offsets": topic(UUID(int=3)),
        "/subscriptions/s": subscription("t", T_ID),
        "/schedules/d": schedule("t", T_ID),
        "/schedules/old": schedule("t", None),
        "/quotas/client-id=a%2Fb%2C%3D,user": {"producer_byte_rate": 5, "request_percentage": 0.5},
        "/config/brokers/default": {"log.retention.ms": "60000"},
        "/config/brokers/1": {"num.partitions": "3"},
        "/config/groups/a%2Fb": {"consumer.session.timeout.ms": "50000"},
    }
) | {"/cluster/id": b"the-cluster", "/producer_ids/next": b"3000"}


def image_of(nodes: Mapping[str, bytes]) -> ClusterImage:
    return fold(ClusterImage(), changes_of(nodes), 0)


def test_tree_becomes_an_image() -> None:
    image = image_of(TREE)
    assert (image.cluster_id, image.next_producer_id, image.partition_count) == ("the-cluster", 3000, 6)
    assert set(image.topics) == {"t", "__queue_state.t", "__consumer_offsets"}
    t = image.topics["t"]
    assert (t.topic_id, t.config, t.partitions[1].leader_epoch, t.partitions[1].isr) == (
        T_ID,
        {"segment.ms": "5"},
        3,
        (1,),
    )
    assert image.names_by_id[TopicId(OTHER_ID)] == "__queue_state.t"
    assert image.quotas == {
        (("client-id", "a/b,="), ("user", None)): {"producer_byte_rate": 5.0, "request_percentage": 0.5}
    }
    assert image.configs == {
        (ConfigScope.BROKERS, "default"): {"log.retention.ms": "60000"},
        (ConfigScope.BROKERS, "1"): {"num.partitions": "3"},
        (ConfigScope.GROUPS, "a/b"): {"consumer.session.timeout.ms": "50000"},
    }


def test_documents_of_subscriptions_and_schedules_stay_as_they_are() -> None:
    image = image_of(TREE)
    s = image.subscriptions["s"]
    assert (s.subscription_id, s.topic_id, s.document.encode()) == (UUID(int=9), T_ID, TREE["/subscriptions/s"])
    for name in ("d", "old"):
        schedule = image.schedules[name]
        assert (schedule.topic_id, schedule.document.encode()) == (T_ID, TREE[f"/schedules/{name}"])


def test_nothing_becomes_an_empty_image() -> None:
    assert changes_of({}) == []


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/topics/__inbox.gone", topic(UUID(int=7))),
        ("/topics/__queue_state.gone", topic(UUID(int=7))),
        ("/subscriptions/orphan", subscription("gone", T_ID)),
        ("/subscriptions/orphan", subscription("t", OTHER_ID)),
        ("/schedules/orphan", schedule("gone", T_ID)),
        ("/schedules/orphan", schedule("gone", None)),
        ("/schedules/orphan", schedule("t", OTHER_ID)),
    ],
)
def test_nodes_of_a_topic_that_is_gone_are_left_out(path: str, document: object) -> None:
    """The broker stopped in the middle of the topic's deletion; another topic may have taken its name."""
    assert image_of(TREE | nodes_of({path: document})) == image_of(TREE)


@pytest.mark.parametrize("path", sorted(TREE.keys() - {"/cluster/id"}))
@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"id": 7, "topic": 7, "x": 7, "topic_id": []}', b"\xff", b"NaN", b"null"]
)
def test_damaged_node_is_a_failure_that_names_it(path: str, content: bytes) -> None:
    if path.startswith("/quotas/") and content.startswith(b"{"):
        content = b'{"producer_byte_rate": Infinity}'
    with pytest.raises(StorageFailure) as failed:
        changes_of(TREE | {path: content})
    assert f"node {path} is damaged" in str(failed.value)


def test_damaged_cluster_id_is_a_failure_that_names_it() -> None:
    with pytest.raises(StorageFailure, match="node /cluster/id is damaged"):
        changes_of({"/cluster/id": b"\xff"})
