"""Settings of the whole cluster: brokers that were started with different values all use the cluster's."""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from conveyor.broker.metadata import dynamic_settings
from conveyor.broker.topics.configs import ConfigEntry, ConfigSource, all_brokers_configs, broker_configs, topic_configs
from conveyor.cluster.changes import ConfigPut
from conveyor.cluster.controller.eligible_replicas import changed_defaults
from conveyor.cluster.dynamic_config import ALL_BROKERS
from conveyor.cluster.image import ConfigScope, Texts
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.replication.roles import Leader
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
MINIMUM, POLICY = "min.insync.replicas", "topics.flush_policy"
ALONE = {"topics.min_insync_replicas": 1}
"""What a broker is started with that would commit alone; the others are started with a minimum of 2."""


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    cluster = unstarted()
    cluster.brokers[2].own_settings |= ALONE
    for broker in cluster.brokers:
        broker.start()
    yield cluster
    cluster.stop()


def unstarted() -> BrokerCluster:
    cluster = BrokerCluster(0)
    cluster.brokers = [ClusterBroker(cluster, node_id) for node_id in (ONE, TWO, THREE)]
    return cluster


def minimum(broker: ClusterBroker) -> tuple[int, object]:
    """Return the minimum in force, and what the image has for all brokers."""
    of_all = broker.node.metadata.image.configs[ConfigScope.BROKERS, ALL_BROKERS]
    return broker.node.settings.topics.min_insync_replicas, of_all.get(MINIMUM)


def change(broker: ClusterBroker, of: int | None, name: str, value: str | None, **how: Any) -> None:
    operation = Operation.DELETE if value is None else Operation.SET
    changes = [ConfigChange(name=name, operation=operation, value=value)]
    broker.run(broker.node.cluster.dynamic_settings.change_broker(CALLER, of, changes, **how))


def put(broker: ClusterBroker, name: str, texts: Texts) -> None:
    """Store settings as a broker of another version does."""
    stored = ConfigPut(scope=ConfigScope.BROKERS, name=name, texts=dict(texts))
    broker.run(broker.node.metadata.propose(lambda _: [stored]))


def restart(cluster: BrokerCluster, broker: ClusterBroker) -> None:
    broker.kill()
    cluster.until(lambda: cluster.brokers[0].node.metadata.image.brokers[broker.node_id].is_fenced)
    broker.start()


def entry(entries: list[ConfigEntry], name: str) -> tuple[str, list[tuple[str, ConfigSource]]]:
    [found] = [entry for entry in entries if entry.name == name]
    assert found.source is found.synonyms[0][2]
    return found.value, [(value, source) for _, value, source in found.synonyms]


def test_nothing_is_acknowledged_by_a_minimum_that_only_the_leader_was_started_with(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(3, 2))
    two, three = cluster.brokers[1:]
    assert three.publish() is None
    two.kill()
    cluster.until(lambda: cluster.image().elr == (TWO,))
    acknowledged = [three.publish() for _ in range(5)].count(None)
    three.kill()
    two.start()
    cluster.until(lambda: cluster.image(broker=two).leader == TWO)
    assert len(two.records()) >= 1 + acknowledged
    three.start()
    cluster.until(lambda: three.records() == two.records())


def test_all_brokers_use_the_values_of_the_first(cluster: BrokerCluster, caplog: pytest.LogCaptureFixture) -> None:
    assert [minimum(broker) for broker in cluster.brokers] == [(2, "2")] * 3
    [warning] = [
        record.getMessage() for record in caplog.get_records("setup") if "setting not used" in record.getMessage()
    ]
    assert "name=min.insync.replicas value=1 of_cluster=2" in warning
    assert "conveyor cluster settings --config min.insync.replicas=1" in warning


def test_brokers_that_start_at_once_agree() -> None:
    cluster = unstarted()
    for broker in cluster.brokers:
        broker.own_settings = {"topics.min_insync_replicas": int(broker.node_id), "topics.flush_policy": "os"}
        broker.assemble()
    starts = [broker.task(broker.join()) for broker in cluster.brokers]
    cluster.loop.run_until_complete(asyncio.wait(starts))
    assert len({minimum(broker) for broker in cluster.brokers}) == 1
    assert {broker.node.settings.topics.flush_policy for broker in cluster.brokers} == {"os"}
    cluster.stop()


def test_a_rolling_change_of_the_files_changes_nothing_and_is_reported(
    cluster: BrokerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in cluster.brokers[1:]:
        caplog.clear()
        broker.own_settings |= {"topics.min_insync_replicas": 3, "topics.unclean_leader_election_enable": True}
        restart(cluster, broker)
        reported = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert any("name=min.insync.replicas value=3 of_cluster=2" in message for message in reported)
        assert any("name=unclean.leader.election.enable value=true of_cluster=false" in message for message in reported)
    assert [minimum(broker) for broker in cluster.brokers] == [(2, "2")] * 3


def test_a_change_for_all_brokers_ends_the_unsafe_elrs_in_the_same_entry(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1, 2))
    cluster.brokers[1].kill()
    cluster.until(lambda: cluster.image().elr == (TWO,))
    seq = cluster.brokers[0].node.metadata.image.seq
    change(cluster.brokers[2], None, MINIMUM, "1")
    cluster.until(lambda: minimum(cluster.brokers[0]) == (1, "1"))
    assert cluster.image().elr == ()
    assert cluster.brokers[0].node.metadata.image.seq == seq + 1
    assert cluster.brokers[0].publish() is None


def test_a_change_for_all_brokers_that_ends_many_elrs_takes_as_many_entries_as_it_needs(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_settings, "changed_defaults", partial(changed_defaults, most_bundles=1))
    names = ("a", "b", "c")
    for name in names:
        cluster.create(name, replicas=(1, 2))
    cluster.brokers[1].kill()
    cluster.until(lambda: [cluster.image(name).elr for name in names] == [(TWO,)] * 3)
    seq = cluster.brokers[0].node.metadata.image.seq
    change(cluster.brokers[0], None, MINIMUM, "1")
    assert minimum(cluster.brokers[0]) == (1, "1")
    assert [cluster.image(name).elr for name in names] == [()] * 3
    assert cluster.brokers[0].node.metadata.image.seq == seq + 3


def test_a_leaders_minimum_and_its_isr_are_of_one_image(cluster: BrokerCluster) -> None:
    """The replicas that a lower minimum lets it do without may have been elected in between."""
    cluster.create(replicas=(1, 2))
    one = cluster.brokers[0]
    before = one.node.metadata.image
    change(one, None, MINIMUM, "1")
    role = one.node.partitions.reconciler._role(before, before.topics["t"], 0)
    assert [role.min_isr for role in (role, one.partition().term.role) if isinstance(role, Leader)] == [2, 1]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_deleted_value_is_the_built_in_default_and_not_that_of_a_broker(
    cluster: BrokerCluster, replaces: bool
) -> None:
    change(cluster.brokers[0], None, MINIMUM, "3")
    if replaces:
        change(cluster.brokers[0], None, "num.partitions", "4", replaces=True)
    else:
        change(cluster.brokers[0], None, MINIMUM, None)
    cluster.until(lambda: all(minimum(broker) == (1, "1") for broker in cluster.brokers))
    restart(cluster, cluster.brokers[1])
    assert minimum(cluster.brokers[1]) == (1, "1")


@pytest.mark.parametrize("name", [MINIMUM, POLICY, "unclean.leader.election.enable", "log.cleanup.policy"])
@pytest.mark.parametrize("how", [{}, {"replaces": True}, {"check_only": True}])
def test_one_brokers_value_is_refused(cluster: BrokerCluster, name: str, how: dict[str, bool]) -> None:
    value = {MINIMUM: "1", POLICY: "os", "log.cleanup.policy": "compact"}.get(name, "true")
    with pytest.raises(RequestError, match=f"'{name}' has one value in the whole cluster") as refused:
        change(cluster.brokers[0], 1, name, value, **how)
    assert refused.value.kind is ErrorKind.INVALID_CONFIG
    change(cluster.brokers[0], 1, name, None)
    change(cluster.brokers[0], 1, "log.retention.ms", "1000")
    assert cluster.brokers[0].node.settings.topics.retention_ms == 1000


def test_one_brokers_value_of_an_earlier_version_does_not_count(
    cluster: BrokerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    put(cluster.brokers[0], "1", {MINIMUM: "1", "num.partitions": "5"})
    assert minimum(cluster.brokers[0]) == (2, "2")
    assert cluster.brokers[0].node.settings.broker.num_partitions == 5
    assert f"settings left out owner=brokers/1 names=['{MINIMUM}']" in caplog.text
    assert entry(broker_configs(cluster.brokers[0].node.cluster.dynamic_settings.layers), MINIMUM)[0] == "2"


def test_another_setting_that_contradicts_a_brokers_own_does_not_hide_the_clusters(cluster: BrokerCluster) -> None:
    three = cluster.brokers[2]
    three.own_settings |= {"network.max_request_bytes": 2_000_000}
    restart(cluster, three)
    change(cluster.brokers[0], None, MINIMUM, "3")
    change(cluster.brokers[0], None, "message.max.bytes", "3000000")
    cluster.until(lambda: three.node.metadata.image.seq == cluster.brokers[0].node.metadata.image.seq)
    assert [minimum(broker) for broker in cluster.brokers] == [(3, "3")] * 3
    sizes = [broker.node.settings.topics.max_message_bytes for broker in cluster.brokers]
    assert sizes == [3_000_000, 3_000_000, 1_048_588]


def test_a_value_that_no_broker_of_this_version_can_use_stops_it() -> None:
    cluster = BrokerCluster(1)
    [one] = cluster.brokers
    with pytest.raises(InconsistentState):
        put(one, ALL_BROKERS, {POLICY: "later"})
    cluster.loop.end()


def test_values_that_the_image_lacks_are_those_of_the_first_broker(
    cluster: BrokerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then each broker may have decided by its own values, so the ELRs cannot be trusted."""
    cluster.create(replicas=(1, 2))
    cluster.create("own", replicas=(1, 2), config={MINIMUM: "2"})
    cluster.brokers[1].kill()
    cluster.until(lambda: cluster.image().elr == cluster.image("own").elr == (TWO,))
    put(cluster.brokers[0], ALL_BROKERS, {"num.partitions": "4"})
    assert minimum(cluster.brokers[0]) == (1, None)
    cluster.brokers[1].own_settings |= {"topics.min_insync_replicas": 2}
    cluster.brokers[1].start()
    cluster.until(lambda: minimum(cluster.brokers[0]) == (2, "2"))
    assert [broker.node.settings.broker.num_partitions for broker in cluster.brokers] == [4, 4, 4]


def test_clients_are_told_the_value_in_force_and_its_source(cluster: BrokerCluster) -> None:
    cluster.create()
    cluster.create("own", config={MINIMUM: "3"})
    of_all = ("2", ConfigSource.ALL_BROKERS_AT_RUN_TIME)
    built_in = ("1", ConfigSource.DEFAULT)
    for broker in cluster.brokers:
        layers, topics = broker.node.cluster.dynamic_settings.layers, broker.node.metadata.image.topics
        assert entry(all_brokers_configs(layers), MINIMUM) == ("2", [of_all])
        assert entry(broker_configs(layers), MINIMUM) == ("2", [of_all, built_in])
        assert entry(topic_configs(topics["t"].config, layers), MINIMUM) == ("2", [of_all, built_in])
        assert entry(topic_configs(topics["own"].config, layers), MINIMUM)[1][0] == ("3", ConfigSource.TOPIC)
