"""Settings changed at run time, without a broker: their precedence, and their owners in the image."""

import pytest

from conveyor.cluster.changes import ConfigPut
from conveyor.cluster.dynamic_config import (
    as_given,
    broker_owner,
    changed_texts,
    valid_texts,
    with_broker_texts,
    with_group_texts,
)
from conveyor.cluster.image import ConfigScope
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import MAX_LIST_CHARACTERS, MAX_TEXT_CHARACTERS
from conveyor.settings.setting_names import broker_settings, group_settings
from conveyor.settings.tree import Settings, from_sources
from tests.unit.cluster.images import EMPTY, changed

GIVEN = from_sources({"broker.num_partitions": 2})
NAME = "num.partitions"


def test_the_broker_has_precedence_over_all_brokers_and_both_over_what_was_given() -> None:
    of_all = with_broker_texts(as_given(GIVEN), None, {NAME: "3"})
    of_broker = with_broker_texts(of_all, 1, {NAME: "4"})
    again = with_broker_texts(of_broker, 1, {})
    counts = [layers.in_force.broker.num_partitions for layers in (as_given(GIVEN), of_all, of_broker, again)]
    assert counts == [2, 3, 4, 3]


def test_group_has_its_own_and_the_rest_from_the_broker() -> None:
    layers = with_group_texts(as_given(Settings()), "g", {"consumer.session.timeout.ms": "50000"})
    layers = with_broker_texts(layers, 1, {"group.consumer.heartbeat.interval.ms": "7000"})
    own = layers.group_settings["g"]
    assert (own.consumer_session_timeout_ms, own.consumer_heartbeat_interval_ms) == (50_000, 7_000)
    assert with_group_texts(layers, "g", {}).group_settings == {}


def test_contradictions_are_refused_wherever_the_values_come_from() -> None:
    layers = with_group_texts(as_given(Settings()), "g", {"consumer.heartbeat.interval.ms": "40000"})
    with pytest.raises(SettingsError, match="group 'g'"):
        with_broker_texts(layers, None, {"group.consumer.session.timeout.ms": "30000"})


def test_only_settings_that_are_live_change() -> None:
    known, unknown = valid_texts({NAME: "3", "node.id": "4", "no.such": "5"}, broker_settings())
    assert (known, unknown) == ({NAME: "3"}, ["no.such", "node.id"])
    with pytest.raises(SettingsError, match=r"'node\.id' needs a restart: set broker\.node_id"):
        changed_texts({}, [ConfigChange(name="node.id", operation=Operation.SET, value="4")], broker_settings(), GIVEN)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.retention.ms", "_5"),
        ("log.retention.ms", "5".rjust(MAX_TEXT_CHARACTERS + 1)),
        ("log.cleanup.policy", "delete".rjust(MAX_LIST_CHARACTERS + 1)),
        ("max.connections.per.ip.overrides", "h:1,".ljust(MAX_TEXT_CHARACTERS + 1)),
    ],
)
def test_form_of_a_text_is_checked_when_it_changes(name: str, text: str) -> None:
    setting = ConfigChange(name=name, operation=Operation.SET, value=text)
    with pytest.raises(SettingsError, match=name):
        changed_texts({}, [setting], broker_settings(), GIVEN)
    other = ConfigChange(name=NAME, operation=Operation.SET, value="3")
    assert changed_texts({name: text}, [other], broker_settings(), GIVEN) == {name: text, NAME: "3"}


def test_list_is_stored_with_each_item_once() -> None:
    name = "log.cleanup.policy"
    setting = ConfigChange(name=name, operation=Operation.SET, value=",".join(["delete", " compact"] * 3))
    assert changed_texts({}, [setting], broker_settings(), GIVEN) == {name: "delete,compact"}


def test_every_setting_of_a_group_is_live() -> None:
    assert all(setting.is_live for setting in group_settings().values())


@pytest.mark.parametrize(("node_id", "name"), [(None, "default"), (1, "1")])
def test_settings_of_brokers_have_an_owner(node_id: int | None, name: str) -> None:
    assert broker_owner(node_id) == (ConfigScope.BROKERS, name)


@pytest.mark.parametrize("name", ["g", "a/b", "../x", "ü %", ".", "default"])
def test_settings_are_kept_for_any_group(name: str) -> None:
    put = ConfigPut(scope=ConfigScope.GROUPS, name=name, texts={NAME: "3"})
    assert changed(EMPTY, put).configs == {(ConfigScope.GROUPS, name): {NAME: "3"}}
    assert changed(EMPTY, put, ConfigPut(scope=ConfigScope.GROUPS, name=name, texts={})).configs == {}
