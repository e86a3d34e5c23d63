"""Settings changed at run time: of all brokers, of one broker, of single groups. Pure: nothing is stored here.

A broker's setting has the first of these values that there is:

    changed for this broker        changed for all brokers        given at the start        the default

In the metadata tree each place is one node, with a JSON object of texts by the names that clients see:

    /config/brokers/default    /config/brokers/1    /config/groups/<group, percent-encoded>

    {"log.retention.ms": "60000"}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import quote, unquote

from conveyor.cluster.setting_names import BrokerSetting, broker_settings, group_settings
from conveyor.cluster.topic_change import ConfigChange, Operation, change_text
from conveyor.kernel.errors import SettingsError
from conveyor.settings.topic_settings import words
from conveyor.settings.tree import GroupsSettings, Settings, with_values

BROKERS_PATH = "/config/brokers"
GROUPS_PATH = "/config/groups"
ALL_BROKERS = "default"

Texts = Mapping[str, str]
"""Values by the names that clients see, as they were given."""

_NOTHING: Texts = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredSettings:
    """The settings in force, and where each value comes from. `given`: at the start. The functions below make it.

    of_groups: what single groups have of their own; group_settings: all that holds for such a group.
    """

    given: Settings
    of_all: Texts
    of_broker: Texts
    of_groups: Mapping[str, Texts]
    in_force: Settings
    group_settings: Mapping[str, GroupsSettings]


def as_given(given: Settings) -> LayeredSettings:
    """Nothing was changed yet."""
    return LayeredSettings(
        given=given, of_all=_NOTHING, of_broker=_NOTHING, of_groups={}, in_force=given, group_settings={}
    )


def with_broker_texts(layers: LayeredSettings, node_id: int | None, texts: Texts) -> LayeredSettings:
    """Other values for this broker, or (None) for all brokers.

    Raises SettingsError where a value is not sound, or contradicts another, also one of a group.
    """
    of_all, of_broker = (texts, layers.of_broker) if node_id is None else (layers.of_all, texts)
    changed = {broker_settings()[name].path: text for name, text in {**of_all, **of_broker}.items()}
    in_force = with_values(layers.given, changed)
    groups = {group_id: _settings_of(group_id, own, in_force) for group_id, own in layers.of_groups.items()}
    return replace(layers, of_all=of_all, of_broker=of_broker, in_force=in_force, group_settings=groups)


def with_group_texts(layers: LayeredSettings, group_id: str, texts: Texts) -> LayeredSettings:
    """Other values for one group; without any it has nothing of its own. Raises SettingsError, as above."""
    of_groups = {name: own for name, own in layers.of_groups.items() if name != group_id}
    groups = {name: settings for name, settings in layers.group_settings.items() if name != group_id}
    if texts:
        groups[group_id] = _settings_of(group_id, texts, layers.in_force)
        of_groups[group_id] = texts
    return replace(layers, of_groups=of_groups, group_settings=groups)


def changed_texts(
    present: Texts, changes: Sequence[ConfigChange], known: Mapping[str, BrokerSetting], in_force: Settings
) -> dict[str, str]:
    """The texts of one place after some changes. known: the settings that the place may have.

    Deleting a setting that is not set changes nothing. Raises SettingsError, RequestError (INVALID_CONFIG).
    """
    texts = dict(present)
    for change in changes:
        if change.operation is Operation.DELETE:
            texts.pop(change.name, None)
            continue
        setting = known.get(change.name)
        if setting is None:
            raise SettingsError(f"there is no setting '{change.name}' that can be changed at run time")
        if not setting.is_live:
            raise SettingsError(
                f"'{change.name}' needs a restart: set {setting.path} by a flag, the environment or conveyor.toml"
            )
        section = getattr(in_force, setting.section)
        change_text(texts, change, setting.declared, getattr(section, setting.declared.name))
        if setting.declared.metadata["several"]:
            texts[change.name] = ",".join(words(texts[change.name]))
    return texts


def sound_texts(texts: Texts, settings: Mapping[str, BrokerSetting]) -> tuple[dict[str, str], list[str]]:
    """Stored texts that this version knows as settings that can change at run time, and the names of the others."""
    known = {name: text for name, text in texts.items() if name in settings and settings[name].is_live}
    return known, sorted(texts.keys() - known.keys())


def broker_path(node_id: int | None) -> str:
    """Where the settings of a broker lie in the metadata tree; None: of all brokers."""
    return f"{BROKERS_PATH}/{ALL_BROKERS if node_id is None else node_id}"


def group_path(group_id: str) -> str:
    """Where the settings of a group lie in the metadata tree."""
    return f"{GROUPS_PATH}/{quote(group_id, safe='')}"


def group_of(path: str) -> str:
    """The group whose settings lie there."""
    return unquote(path.rpartition("/")[2])


def encode_texts(texts: Texts) -> bytes:
    """A node's content."""
    return json.dumps(dict(texts)).encode()


def decode_texts(content: bytes) -> dict[str, str]:
    """The texts in a node."""
    return {str(name): str(text) for name, text in json.loads(content).items()}


def _settings_of(group_id: str, texts: Texts, in_force: Settings) -> GroupsSettings:
    try:
        return with_values(in_force, {group_settings()[name].path: text for name, text in texts.items()}).groups
    except SettingsError as error:
        raise SettingsError(f"group '{group_id}': {error}") from error
