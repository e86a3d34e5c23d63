"""The defaults of topics that belong to the cluster, without a broker."""

import pytest

from conveyor.cluster.changes import ConfigPut
from conveyor.cluster.cluster_defaults import (
    completed,
    differences,
    founded,
    min_insync_replicas,
    of_cluster,
    without_own_values,
)
from conveyor.cluster.dynamic_config import ALL_BROKERS
from conveyor.cluster.image import ClusterImage, ConfigScope
from conveyor.settings.setting_names import cluster_settings
from conveyor.settings.tree import Settings, from_sources
from tests.unit.cluster.controller.clusters import cluster, partition
from tests.unit.cluster.images import EMPTY, changed

MINIMUM = "min.insync.replicas"
BUILT_IN = {
    "log.cleanup.policy": "delete",
    "min.insync.replicas": "1",
    "topics.dedup_enable": "false",
    "topics.publisher_enable": "false",
    "topics.dedup_window_ms": "300000",
    "topics.flush_policy": "ack",
    "unclean.leader.election.enable": "false",
}
TWO = from_sources({"topics.min_insync_replicas": 2, "topics.retention_ms": 5})


def with_texts(image: ClusterImage, **texts: str) -> ClusterImage:
    return changed(image, ConfigPut(scope=ConfigScope.BROKERS, name=ALL_BROKERS, texts=texts))


def texts_of(image: ClusterImage) -> dict[str, str]:
    return dict(image.configs[ConfigScope.BROKERS, ALL_BROKERS])


def test_the_cluster_has_every_setting_on_which_replicas_must_agree() -> None:
    assert dict(completed({})) == BUILT_IN
    assert cluster_settings().keys() == BUILT_IN.keys()


def test_first_broker_stores_its_values_and_the_next_ones_store_nothing() -> None:
    image = changed(EMPTY, *founded(EMPTY, TWO))
    assert texts_of(image) == BUILT_IN | {MINIMUM: "2"}
    assert founded(image, Settings()) == []


def test_only_missing_values_are_stored() -> None:
    image = with_texts(EMPTY, **{"min.insync.replicas": "3", "num.partitions": "4"})
    after = changed(image, *founded(image, TWO))
    assert texts_of(after) == BUILT_IN | {MINIMUM: "3", "num.partitions": "4"}


def test_elrs_under_the_values_of_single_brokers_end_unless_the_topic_has_its_own() -> None:
    state = partition([1, 2], [1], elr=[2])
    for config, elr in (({}, ()), ({MINIMUM: "2"}, (2,))):
        image = cluster(state, config=config)
        after = changed(image, *founded(image, TWO))
        assert after.topics["t"].partitions[0].elr == elr


def test_without_its_own_values_a_broker_keeps_all_others() -> None:
    kept = without_own_values(TWO)
    assert (kept.topics.min_insync_replicas, kept.topics.retention_ms) == (1, 5)


@pytest.mark.parametrize(("text", "found"), [("2", []), (" 2", []), ("3", [(MINIMUM, "2", "3")])])
def test_values_are_compared_and_not_their_texts(text: str, found: list[tuple[str, str, str]]) -> None:
    assert list(differences(TWO, {MINIMUM: text, "log.retention.ms": "7"})) == found


def test_texts_for_all_brokers_have_others_beside_those_of_the_cluster() -> None:
    assert of_cluster({MINIMUM: "2", "num.partitions": "4"}) == {MINIMUM: "2"}


@pytest.mark.parametrize(("own", "of_all", "minimum"), [({}, {}, 1), ({}, {MINIMUM: "2"}, 2), ({MINIMUM: "3"}, {}, 3)])
def test_minimum_is_the_topics_or_the_clusters(own: dict[str, str], of_all: dict[str, str], minimum: int) -> None:
    image = with_texts(cluster(partition([1, 2]), config=own), **of_all)
    assert min_insync_replicas(image, image.topics["t"]) == minimum
