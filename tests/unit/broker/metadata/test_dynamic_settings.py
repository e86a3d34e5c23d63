"""The settings of groups at run time: a change costs as much as the groups that it changes."""

from itertools import pairwise

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster import dynamic_config
from conveyor.cluster.changes import ConfigPut
from conveyor.cluster.dynamic_config import LayeredSettings
from conveyor.cluster.image import ConfigScope, Texts
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.groups.group_machine import MAX_GROUP_ID_BYTES
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.settings.tree import GroupsSettings, Settings
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
GROUPS = [f"group-{number}" for number in range(100)]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups whose settings were built, in this order."""
    built: list[str] = []
    build = dynamic_config._settings_of

    def recorded(group_id: str, texts: Texts, in_force: Settings) -> GroupsSettings:
        built.append(group_id)
        return build(group_id, texts, in_force)

    monkeypatch.setattr(dynamic_config, "_settings_of", recorded)
    return built


async def put(broker: BrokerNode, texts: Texts, *group_ids: str) -> LayeredSettings:
    """Store settings of groups, in one change of the metadata."""
    puts = [ConfigPut(scope=ConfigScope.GROUPS, name=group_id, texts=dict(texts)) for group_id in group_ids]
    await broker.metadata.propose(lambda _: [*puts])
    return broker.cluster.dynamic_settings.layers


async def set_for_all(broker: BrokerNode, name: str, value: str) -> LayeredSettings:
    change = ConfigChange(name=name, operation=Operation.SET, value=value)
    await broker.cluster.dynamic_settings.change_broker(CALLER, None, [change])
    return broker.cluster.dynamic_settings.layers


async def test_only_the_settings_of_changed_groups_are_built(built: list[str]) -> None:
    storage = Storage()
    async with running_parts({}, storage) as broker:
        history = [await put(broker, {SESSION: "46000"}, *GROUPS)]
        assert built == GROUPS
        built.clear()
        history.append(await put(broker, {SESSION: "47000"}, "group-3", "new"))
        history.append(await put(broker, {}, "group-4"))
        assert built == ["group-3", "new"]
        history.append(await set_for_all(broker, "log.retention.ms", "1000"))
        assert built == ["group-3", "new"]
        for layers in history[1:]:
            assert layers.group_settings["group-3"].consumer_session_timeout_ms == 47_000
        for before, after in pairwise(history):
            assert after.group_settings["group-5"] is before.group_settings["group-5"]
        assert layers.of_groups.keys() == layers.group_settings.keys() == {*GROUPS, "new"} - {"group-4"}
    built.clear()
    async with running_parts({}, storage) as broker:
        assert broker.cluster.dynamic_settings.layers.of_groups == layers.of_groups
        assert sorted(built) == sorted(layers.of_groups)


async def test_groups_follow_the_settings_that_they_inherit() -> None:
    async with running_parts() as broker:
        await put(broker, {SESSION: "50000"}, *GROUPS)
        refused = await put(broker, {HEARTBEAT: "46000"}, "slow")  # Above the session timeout of all groups.
        assert "slow" not in refused.of_groups
        raised = await set_for_all(broker, "group.consumer.session.timeout.ms", "60000")
        assert raised.group_settings["slow"].consumer_heartbeat_interval_ms == 46_000
        lower = await set_for_all(broker, "group.consumer.heartbeat.interval.ms", "4000")
        assert [lower.group_settings[name].consumer_heartbeat_interval_ms for name in GROUPS] == [4000] * len(GROUPS)


async def test_group_with_settings_has_an_id_that_a_group_can_have() -> None:
    longest, stored = "ü" * (MAX_GROUP_ID_BYTES // 2), "x" * 2_000
    change = ConfigChange(name=SESSION, operation=Operation.SET, value="46000")
    async with running_parts() as broker:
        dynamic = broker.cluster.dynamic_settings
        await dynamic.change_group(CALLER, longest, [change])
        for check_only in (True, False):
            with pytest.raises(RequestError, match="1024 bytes") as refused:
                await dynamic.change_group(CALLER, longest + "x", [change], check_only=check_only)
            assert refused.value.kind is ErrorKind.INVALID_GROUP_ID
        await put(broker, {SESSION: "46000"}, stored)
        await dynamic.change_group(CALLER, stored, [], replaces=True)
        assert dynamic.layers.of_groups.keys() == {longest}
