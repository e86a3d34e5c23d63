"""Settings changed at run time: for all brokers, for one broker, or for single groups. Pure: nothing is stored here.

The first existing value of this list applies to a broker's setting:

    changed for this broker        changed for all brokers        given at the start        the default

In the cluster image each scope is one owner (`ConfigOwner`), with texts by the names that clients see:

    (brokers, default)    (brokers, 1)    (groups, <group>)    {"log.retention.ms": "60000"}
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from conveyor.cluster.image import ConfigOwner, ConfigScope, Texts
from conveyor.cluster.topic_change import ConfigChange, Operation, change_text
from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import check_new_text, parse
from conveyor.settings.setting_names import BrokerSetting, broker_settings, group_settings
from conveyor.settings.topic_settings import list_items, list_text
from conveyor.settings.tree import GroupsSettings, Settings, with_values

ALL_BROKERS = "default"

NO_TEXTS: Texts = MappingProxyType({})


class LayeredSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings, and the source of each value. The functions below create it.

    given: the settings at the start.
    of_groups: the overrides of single groups.
    group_settings: the complete settings of each group with overrides.
    """

    given: Settings
    of_all: Texts
    of_broker: Texts
    of_groups: Mapping[str, Texts]
    in_force: Settings
    group_settings: Mapping[str, GroupsSettings]


def as_given(given: Settings) -> LayeredSettings:
    """Return the layers before any change."""
    return LayeredSettings(
        given=given, of_all=NO_TEXTS, of_broker=NO_TEXTS, of_groups={}, in_force=given, group_settings={}
    )


def with_broker_texts(layers: LayeredSettings, node_id: int | None, texts: Texts) -> LayeredSettings:
    """Return the layers with other values for this broker, or for all brokers if `node_id` is None.

    Raises SettingsError if a value is invalid, or contradicts another value, including a group's.
    """
    of_all, of_broker = (texts, layers.of_broker) if node_id is None else (layers.of_all, texts)
    changed = {}
    for name, text in {**of_all, **of_broker}.items():
        setting = broker_settings()[name]
        if setting.is_used:
            changed[setting.path] = text
        else:
            parse(setting.declared, text, label=name)
    in_force = with_values(layers.given, changed)
    groups = layers.group_settings
    if in_force.groups != layers.in_force.groups:
        groups = {group_id: _settings_of(group_id, own, in_force) for group_id, own in layers.of_groups.items()}
    return msgspec.structs.replace(layers, of_all=of_all, of_broker=of_broker, in_force=in_force, group_settings=groups)


def with_group_texts(layers: LayeredSettings, group_id: str, texts: Texts) -> LayeredSettings:
    """Return the layers with other overrides for one group, or none if `texts` is empty.

    Raises SettingsError, as above.
    """
    layers, refused = with_texts_of_groups(layers, {group_id: texts})
    if refused:
        raise refused[group_id]
    return layers


def with_texts_of_groups(
    layers: LayeredSettings, texts_by_group: Mapping[str, Texts]
) -> tuple[LayeredSettings, dict[str, SettingsError]]:
    """Return the layers with other overrides for some groups, and why groups have none: their overrides are invalid, or
    contradict other values. A group with empty texts has none, either.
    """
    of_groups, groups = dict(layers.of_groups), dict(layers.group_settings)
    refused = {}
    for group_id, texts in texts_by_group.items():
        of_groups.pop(group_id, None)
        groups.pop(group_id, None)
        if not texts:
            continue
        try:
            groups[group_id] = _settings_of(group_id, texts, layers.in_force)
            of_groups[group_id] = texts
        except SettingsError as error:
            refused[group_id] = error
    return msgspec.structs.replace(layers, of_groups=of_groups, group_settings=groups), refused


def changed_texts(
    present: Texts, changes: Sequence[ConfigChange], settings: Mapping[str, BrokerSetting], in_force: Settings
) -> dict[str, str]:
    """Return one scope's texts after changes. settings: those that the scope supports.

    Deleting a setting that is not set changes nothing. Raises SettingsError, RequestError (INVALID_CONFIG).
    """
    texts = dict(present)
    for change in changes:
        if change.operation is Operation.DELETE:
            texts.pop(change.name, None)
            continue
        setting = settings.get(change.name)
        if setting is None:
            raise SettingsError(f"there is no setting '{change.name}' that can be changed at run time")
        if not setting.is_live:
            raise SettingsError(
                f"'{change.name}' needs a restart: set {setting.path} by a flag, the environment or conveyor.toml"
            )
        change_text(texts, change, setting.declared, setting.value(in_force))
        check_new_text(setting.declared, texts[change.name], label=change.name)
        if setting.declared.metadata["is_list"]:
            texts[change.name] = list_text(list_items(texts[change.name]))
    return texts


def valid_texts(texts: Texts, settings: Mapping[str, BrokerSetting]) -> tuple[dict[str, str], list[str]]:
    """Split stored texts into the live settings of this version, and the names of all others."""
    sound = {name: text for name, text in texts.items() if name in settings and settings[name].is_live}
    return sound, sorted(texts.keys() - sound.keys())


def broker_owner(node_id: int | None) -> ConfigOwner:
    """Return the owner of a broker's settings in the image; None for all brokers."""
    return ConfigScope.BROKERS, ALL_BROKERS if node_id is None else str(node_id)


def _settings_of(group_id: str, texts: Texts, in_force: Settings) -> GroupsSettings:
    try:
        return with_values(in_force, {group_settings()[name].path: text for name, text in texts.items()}).groups
    except SettingsError as error:
        raise SettingsError(f"group '{group_id}': {error}") from error
