"""Changes of a topic: single settings, all settings, more partitions."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from conveyor.cluster import topic_change
from conveyor.cluster.image import QUEUE_STATE, BrokerImage, TopicImage
from conveyor.cluster.placement import Placement
from conveyor.cluster.topic_change import (
    ConfigChange,
    Operation,
    changed_config,
    check_more_partitions,
    more_partitions,
    replaced_config,
)
from conveyor.cluster.topic_creation import TopicRequest, plan_companion, plan_topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.records.batch import MAX_BATCH_BYTES
from conveyor.settings.setting import MAX_LIST_CHARACTERS, MAX_TEXT_CHARACTERS
from conveyor.settings.topic_settings import topic_settings
from conveyor.settings.tree import Settings, from_sources
from tests.unit.cluster.images import EMPTY, with_brokers, with_topics

SETTINGS = Settings()
BROKER = BrokerImage(node_id=NodeId(1), host="localhost", port=9092)
CLUSTER = with_brokers(EMPTY, BROKER)


def topic(**config: str) -> TopicImage:
    request = TopicRequest(name="t", partitions=2, config={key.replace("_", "."): text for key, text in config.items()})
    return plan_topic(CLUSTER, request, SETTINGS, TopicId(UUID(int=1)))


def change(name: str, operation: Operation, value: str | None = None) -> ConfigChange:
    return ConfigChange(name=name, operation=operation, value=value)


def test_change_sets_and_deletes_single_settings() -> None:
    changed = changed_config(
        topic(retention_ms="1", segment_bytes="4096"),
        [change("retention.ms", Operation.DELETE), change("max.message.bytes", Operation.SET, "5")],
        SETTINGS,
    )
    assert changed.config == {"segment.bytes": "4096", "max.message.bytes": "5"}


@pytest.mark.parametrize(("size", "is_taken"), [(MAX_BATCH_BYTES, True), (MAX_BATCH_BYTES + 1, False)])
def test_no_topic_takes_batches_that_no_frame_carries(size: int, is_taken: bool) -> None:
    changes = [change("max.message.bytes", Operation.SET, str(size))]
    if is_taken:
        assert changed_config(topic(), changes, SETTINGS).config == {"max.message.bytes": str(size)}
        return
    with pytest.raises(RequestError, match="at most 2147483647 bytes") as refused:
        changed_config(topic(), changes, SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_CONFIG


def test_replace_forgets_what_is_not_named() -> None:
    assert replaced_config(topic(retention_ms="1"), {"segment.bytes": "4096"}, SETTINGS).config == {
        "segment.bytes": "4096"
    }


def test_change_trims_the_words_of_a_list() -> None:
    added = changed_config(topic(), [change("cleanup.policy", Operation.APPEND, " compact ")], SETTINGS)
    assert added.config == {"cleanup.policy": "delete,compact"}
    again = changed_config(added, [change("cleanup.policy", Operation.APPEND, "acknowledged, compact")], SETTINGS)
    assert again.config == {"cleanup.policy": "delete,compact,acknowledged"}
    fewer = changed_config(again, [change("cleanup.policy", Operation.SUBTRACT, "delete, acknowledged")], SETTINGS)
    assert fewer.config == {"cleanup.policy": "compact"}
    both = changed_config(fewer, [change("cleanup.policy", Operation.SET, "delete , compact")], SETTINGS)
    assert both.config == added.config
    assert replaced_config(topic(), {"cleanup.policy": " delete , compact "}, SETTINGS).config == added.config


class Item(str):
    """An item of a list. compared: how often one was compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Item.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize(("operation", "left"), [(Operation.APPEND, 3_000), (Operation.SUBTRACT, 1_000)])
def test_change_compares_each_item_of_a_list_once(
    monkeypatch: pytest.MonkeyPatch, operation: Operation, left: int
) -> None:
    monkeypatch.setattr(topic_change, "list_items", lambda text: [Item(item) for item in text.split(",")])
    monkeypatch.setattr(Item, "compared", 0)
    name = "leader.replication.throttled.replicas"
    present, given = (",".join(f"{number}:0" for number in range(start, start + 2_000)) for start in (0, 1_000))
    changed = changed_config(replace(topic(), config={name: present}), [change(name, operation, given)], SETTINGS)
    assert len(changed.config[name].split(",")) == left
    assert Item.compared < 5_000


def test_append_is_limited_by_the_list_that_it_makes() -> None:
    name = "leader.replication.throttled.replicas"
    part = ",".join(f"{number}:0" for number in range(1_000, 4_000))
    changed = changed_config(topic(), [change(name, Operation.APPEND, part)], SETTINGS)
    assert changed_config(changed, [change(name, Operation.APPEND, part)], SETTINGS) == changed
    more = part.replace(":0", ":1")
    with pytest.raises(RequestError, match="has 41999 characters: it may have 32767") as refused:
        changed_config(changed, [change(name, Operation.APPEND, more)], SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_CONFIG


@pytest.mark.parametrize(
    "bad",
    [
        change("no.such.setting", Operation.SET, "1"),
        change("no.such.setting", Operation.DELETE),
        change("retention.ms", Operation.SET, "soon"),
        change("retention.ms", Operation.SET),
        change("retention.ms", Operation.APPEND, "1"),
    ],
)
def test_change_refuses_what_has_no_sound_value(bad: ConfigChange) -> None:
    with pytest.raises(RequestError) as refused:
        changed_config(topic(), [bad], SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_CONFIG


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("retention.ms", "5".rjust(MAX_TEXT_CHARACTERS)),
        ("delay.target", "x" * MAX_TEXT_CHARACTERS),
        ("cleanup.policy", "delete," * 4_000 + "delete".rjust(MAX_LIST_CHARACTERS - 28_000)),
        ("leader.replication.throttled.replicas", "0:1".ljust(MAX_LIST_CHARACTERS)),
    ],
)
def test_text_of_a_setting_is_limited(name: str, longest: str) -> None:
    settings = {name: longest + " " * 9}
    attempts: list[Callable[[], object]] = [
        lambda: changed_config(topic(), [change(name, Operation.SET, settings[name])], SETTINGS),
        lambda: replaced_config(topic(), settings, SETTINGS),
        lambda: plan_topic(CLUSTER, TopicRequest(name="t", config=settings), SETTINGS, TopicId(UUID(int=1))),
    ]
    for attempt in attempts:
        with pytest.raises(RequestError) as refused:
            attempt()
        assert refused.value.kind is ErrorKind.INVALID_CONFIG
        assert len(refused.value.message) < 500
    if name != "delay.target":
        assert name in changed_config(topic(), [change(name, Operation.SET, longest)], SETTINGS).config


@pytest.mark.parametrize(("name", "text"), [("retention.ms", "1_0"), ("min.cleanable.dirty.ratio", "0.1_0")])
def test_number_has_a_plain_form(name: str, text: str) -> None:
    plain = {name: f" +{text.replace('_', '')} "}
    assert replaced_config(topic(), plain, SETTINGS).config == plain
    with pytest.raises(RequestError, match=r"a (whole )?number") as refused:
        replaced_config(topic(), {name: text}, SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_CONFIG


def test_stored_settings_of_a_form_that_is_no_longer_accepted_stay() -> None:
    long = ",".join(f"{number}:0" for number in range(MAX_LIST_CHARACTERS))
    stored = {"retention.ms": "_" * 9_000 + "5", "leader.replication.throttled.replicas": long}
    before = replace(topic(), config=stored)
    assert topic_settings(SETTINGS.topics, stored).retention_ms == 5
    changed = changed_config(before, [change("segment.bytes", Operation.SET, "4096")], SETTINGS)
    assert changed.config == {**stored, "segment.bytes": "4096"}
    with pytest.raises(RequestError, match="characters"):
        changed_config(before, [change("retention.ms", Operation.SET, stored["retention.ms"] + "0")], SETTINGS)
    assert "retention.ms" not in changed_config(before, [change("retention.ms", Operation.DELETE)], SETTINGS).config


def test_change_refuses_a_setting_named_twice() -> None:
    twice = [change("retention.ms", Operation.SET, "1"), change("retention.ms", Operation.DELETE)]
    with pytest.raises(RequestError, match="twice") as refused:
        changed_config(topic(), twice, SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


def test_more_partitions_keeps_those_there_are() -> None:
    before = topic()
    after = more_partitions(CLUSTER, before, 4, None, SETTINGS)
    assert after.partitions[:2] == before.partitions
    assert [partition.leader for partition in after.partitions] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("count", "assignment", "kind"),
    [
        (2, None, ErrorKind.INVALID_PARTITIONS),
        (1, None, ErrorKind.INVALID_PARTITIONS),
        (4, [[1]], ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (3, [[7]], ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (3, [[]], ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1, 2]], ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (1_000_000, None, ErrorKind.INVALID_PARTITIONS),
    ],
)
def test_more_partitions_refuses(count: int, assignment: list[list[int]] | None, kind: ErrorKind) -> None:
    with pytest.raises(RequestError) as refused:
        more_partitions(CLUSTER, topic(), count, assignment, SETTINGS)
    assert refused.value.kind is kind


def test_more_partitions_respects_the_brokers_limit() -> None:
    small = from_sources({"broker.max_partitions": "3"})
    with pytest.raises(RequestError, match="max_partitions"):
        more_partitions(with_topics(EMPTY, topic()), topic(), 4, None, small)


def test_more_partitions_are_refused_before_their_replicas_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = topic()
    image = with_topics(CLUSTER, owner)
    monkeypatch.delattr(Placement, "__init__")
    assert check_more_partitions(image, owner, 19_000, None, SETTINGS, others=1_000) == 18_998
    for others in (1_001, 30_000):
        with pytest.raises(RequestError) as refused:
            check_more_partitions(image, owner, 19_000, None, SETTINGS, others)
        assert refused.value.kind is ErrorKind.INVALID_PARTITIONS
    with pytest.raises(RequestError) as refused:
        more_partitions(image, owner, 20_001, None, SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_PARTITIONS


def test_partitions_of_companions_count_too() -> None:
    owner = topic()
    state = plan_companion(CLUSTER, QUEUE_STATE, owner, SETTINGS, TopicId(UUID(int=2)))
    image = with_topics(CLUSTER, owner, state)
    assert check_more_partitions(image, owner, 10_000, None, SETTINGS) == 2 * 9_998
    with pytest.raises(RequestError, match="with 19998 more there would be 20002") as refused:
        check_more_partitions(image, owner, 10_001, None, SETTINGS)
    assert refused.value.kind is ErrorKind.INVALID_PARTITIONS
