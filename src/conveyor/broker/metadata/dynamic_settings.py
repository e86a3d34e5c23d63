"""Settings that clients change at run time. They are stored in the metadata and take effect at once.

A change is checked together with all other effective settings, so a value that contradicts another is refused. A
stored setting that is no longer valid, after a downgrade or a change of conveyor.toml, is ignored at the start and
logged. It stays in the store until a client changes or deletes it.

The settings of the whole cluster (`cluster_defaults`) are the exception: a broker that cannot use a stored value stops.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from conveyor.broker.services import Services
from conveyor.cluster.changes import Change, ConfigPut
from conveyor.cluster.cluster_defaults import (
    check_of_one_broker,
    completed,
    differences,
    founded,
    of_cluster,
    without_own_values,
)
from conveyor.cluster.controller.eligible_replicas import changed_defaults
from conveyor.cluster.dynamic_config import (
    NO_TEXTS,
    LayeredSettings,
    as_given,
    broker_owner,
    changed_texts,
    valid_texts,
    with_broker_texts,
    with_group_texts,
    with_texts_of_groups,
)
from conveyor.cluster.image import ClusterImage, ConfigOwner, ConfigScope, Texts
from conveyor.cluster.topic_change import ConfigChange
from conveyor.groups.group_machine import check_group_id
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError, SettingsError, storage_failure
from conveyor.kernel.ids import is_gateway
from conveyor.kernel.signal import Signal
from conveyor.settings.setting_names import BrokerSetting, broker_settings, group_settings

log = logging.getLogger(__name__)


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of settings. known: the settings that it may have. invalid: the error for any other setting."""

    owner: ConfigOwner
    known: Mapping[str, BrokerSetting]
    layered: Callable[[LayeredSettings, Texts], LayeredSettings]
    invalid: ErrorKind


class DynamicSettings:
    """See the module's docstring. changed: emitted when the services have new settings."""

    def __init__(self, services: Services) -> None:
        self.changed: Signal[LayeredSettings] = Signal()
        self._services = services
        self._metadata = services.metadata
        self._given = given = services.settings
        self._is_shared = not self._metadata.session.is_embedded
        """True if other brokers have these settings, too."""
        self.layers = as_given(without_own_values(given) if self._is_shared else given)
        self._metadata.listen(self._observe)

    async def agree(self) -> None:
        """Store this broker's values for the cluster where it has none; report those that differ from the cluster's.

        Raises StorageFailure.
        """
        if not self._is_shared or is_gateway(self._given.broker.node_id):
            return
        try:
            image = await self._metadata.propose_all(lambda image: founded(image, self._given))
        except RequestError as error:
            raise storage_failure(error) from error
        for name, own, text in differences(self._given, image.configs[broker_owner(None)]):
            log.warning(
                "setting not used name=%s value=%s of_cluster=%s: all brokers have the cluster's value; to change it,"
                " use 'conveyor cluster settings --config %s=%s'; to keep it, set it here as well",
                name, own, text, name, own,
            )  # fmt: skip

    async def change_broker(
        self,
        caller: Caller,
        node_id: int | None,
        changes: Sequence[ConfigChange],
        *,
        replaces: bool = False,
        check_only: bool = False,
    ) -> None:
        """Change settings of this broker, or of all brokers if `node_id` is None. replaces: delete the settings not in
        `changes`.

        Raises RequestError: INVALID_REQUEST, as Kafka's brokers do; INVALID_CONFIG for a setting of the cluster that is
        changed for one broker; METADATA_UNAVAILABLE, DISK_FULL.
        """
        if node_id is not None:
            check_of_one_broker(changes)
        await self._change(self._of_broker(node_id), changes, replaces, check_only)

    async def change_group(
        self,
        caller: Caller,
        group_id: str,
        changes: Sequence[ConfigChange],
        *,
        replaces: bool = False,
        check_only: bool = False,
    ) -> None:
        """Change the overrides of a group. The group need not exist.

        Raises RequestError: INVALID_CONFIG, INVALID_GROUP_ID, METADATA_UNAVAILABLE, DISK_FULL.
        """
        if (ConfigScope.GROUPS, group_id) not in self._metadata.image.configs:  # It may have an id that is too long.
            check_group_id(group_id)
        await self._change(_of_group(group_id), changes, replaces, check_only)

    async def _change(self, place: _Place, changes: Sequence[ConfigChange], replaces: bool, check_only: bool) -> None:
        is_changed = False

        def decide(image: ClusterImage) -> list[Change]:
            """End the ELRs that a lower `min.insync.replicas` makes unsafe."""
            nonlocal is_changed
            change, layers = self._decide(place, changes, replaces, image)
            decided = changed_defaults(image, change, layers.in_force)
            is_changed = change in decided
            return decided

        if check_only:
            self._decide(place, changes, replaces, self._metadata.image)
            return
        while not is_changed:
            image = await self._metadata.propose(decide)
        await self._metadata.applied.settled(image.seq)

    def _decide(
        self, place: _Place, changes: Sequence[ConfigChange], replaces: bool, image: ClusterImage
    ) -> tuple[ConfigPut, LayeredSettings]:
        """Return the change of the metadata, and the resulting effective settings. Raises RequestError."""
        stored = {} if replaces else image.configs.get(place.owner, {})
        try:
            present, _ = valid_texts(stored, place.known)
            texts: Texts = changed_texts(present, changes, place.known, self.layers.in_force)
            if self._is_shared and place.owner == broker_owner(None):
                texts = completed(texts)
            scope, name = place.owner
            return ConfigPut(scope=scope, name=name, texts=dict(texts)), place.layered(self.layers, texts)
        except SettingsError as error:
            raise RequestError(place.invalid, str(error)) from error

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.configs is old.configs and old.seq:
            return
        before, self.layers = self.layers, as_given(self.layers.given)
        if self._is_shared:  # Even if another one of the settings for all brokers contradicts this broker's own.
            self.layers = with_broker_texts(self.layers, None, of_cluster(new.configs.get(broker_owner(None), {})))
        places = [self._of_broker(None), self._of_broker(self._given.broker.node_id)]
        for place in places:
            if place.owner in new.configs:
                self._take(place, new.configs[place.owner])
        stored = _of_groups(new)
        if self.layers.in_force.groups == before.in_force.groups:  # Only those of changed groups can differ.
            self.layers = msgspec.structs.replace(
                self.layers, of_groups=before.of_groups, group_settings=before.group_settings
            )
            stored = _differences(_of_groups(old), stored)
        self._take_groups(stored)
        self._services.use(self.layers.in_force)
        self.changed.emit(self.layers)

    def _take(self, place: _Place, stored: Texts) -> None:
        texts = _known_texts(place.owner, stored, place.known)
        try:
            self.layers = place.layered(self.layers, texts)
        except SettingsError as error:
            _log_refused(place.owner, texts, error)

    def _take_groups(self, stored: Mapping[str, Texts]) -> None:
        """Take the settings of some groups in one step: each step copies those of all groups."""
        texts = {
            group_id: _known_texts((ConfigScope.GROUPS, group_id), own, group_settings())
            for group_id, own in stored.items()
        }
        self.layers, refused = with_texts_of_groups(self.layers, texts)
        for group_id, error in refused.items():
            _log_refused((ConfigScope.GROUPS, group_id), texts[group_id], error)

    def _of_broker(self, node_id: int | None) -> _Place:
        is_one_of_many = self._is_shared and node_id is not None
        known = {name: setting for name, setting in broker_settings().items() if not setting.is_of_cluster}
        return _Place(
            owner=broker_owner(node_id),
            known=known if is_one_of_many else broker_settings(),
            layered=lambda layers, texts: with_broker_texts(layers, node_id, texts),
            invalid=ErrorKind.INVALID_REQUEST,
        )


def _of_groups(image: ClusterImage) -> dict[str, Texts]:
    return {name: texts for (scope, name), texts in image.configs.items() if scope is ConfigScope.GROUPS}


def _differences(old: Mapping[str, Texts], new: Mapping[str, Texts]) -> dict[str, Texts]:
    """Return the new texts of the groups that have others; no texts for a group that has none any more."""
    changed = {group_id: texts for group_id, texts in new.items() if texts is not old.get(group_id)}
    return changed | dict.fromkeys(old.keys() - new.keys(), NO_TEXTS)


def _known_texts(owner: ConfigOwner, stored: Texts, known: Mapping[str, BrokerSetting]) -> Texts:
    texts, unknown = valid_texts(stored, known)
    if unknown:
        log.warning(
            "settings left out owner=%s names=%s: they cannot change at run time, or belong to the whole cluster",
            "/".join(owner), unknown,
        )  # fmt: skip
    return texts


def _log_refused(owner: ConfigOwner, texts: Texts, error: SettingsError) -> None:
    log.error("settings left out owner=%s names=%s reason=%s", "/".join(owner), sorted(texts), error)


def _of_group(group_id: str) -> _Place:
    return _Place(
        owner=(ConfigScope.GROUPS, group_id),
        known=group_settings(),
        layered=lambda layers, texts: with_group_texts(layers, group_id, texts),
        invalid=ErrorKind.INVALID_CONFIG,
    )
