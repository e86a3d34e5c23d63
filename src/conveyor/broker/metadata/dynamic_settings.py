"""Settings that clients change at run time. They are stored in the metadata and take effect at once.

A change is checked together with all other effective settings, so a value that contradicts another is refused. A
stored setting that is no longer valid, after a downgrade or a change of conveyor.toml, is ignored at the start and
logged. It stays in the store until a client changes or deletes it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import msgspec

from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import Change, ConfigPut
from conveyor.cluster.controller.eligible_replicas import ended_eligibilities
from conveyor.cluster.dynamic_config import (
    LayeredSettings,
    as_given,
    broker_owner,
    changed_texts,
    valid_texts,
    with_broker_texts,
    with_group_texts,
)
from conveyor.cluster.image import ClusterImage, ConfigOwner, ConfigScope, Texts
from conveyor.cluster.setting_names import BrokerSetting, broker_settings, group_settings
from conveyor.cluster.topic_change import ConfigChange
from conveyor.cluster.topic_decisions import missing_inboxes
from conveyor.kernel.errors import ErrorKind, RequestError, SettingsError
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """One owner of settings. known: the settings that it may have. invalid: the error for any other setting."""

    owner: ConfigOwner
    known: Mapping[str, BrokerSetting]
    layered: Callable[[LayeredSettings, Texts], LayeredSettings]
    invalid: ErrorKind


class DynamicSettings:
    """See the module's docstring.

    apply: called with the new settings. settled: waits until this broker has applied an image, by its number.
    """

    def __init__(
        self,
        given: Settings,
        metadata: Metadata,
        apply: Callable[[LayeredSettings], None],
        settled: Callable[[int], Awaitable[None]],
        new_id: Callable[[], UUID],
    ) -> None:
        self.layers = as_given(given)
        self._metadata = metadata
        self._apply = apply
        self._settled = settled
        self._new_id = new_id
        metadata.listen(self._observe)

    async def change_broker(
        self, node_id: int | None, changes: Sequence[ConfigChange], *, replaces: bool = False, check_only: bool = False
    ) -> None:
        """Change settings of this broker, or of all brokers if `node_id` is None. replaces: delete the settings not in
        `changes`.

        Raises RequestError: INVALID_REQUEST, as Kafka's brokers do; METADATA_UNAVAILABLE, DISK_FULL.
        """
        await self._change(_of_broker(node_id), changes, replaces, check_only)

    async def change_group(
        self, group_id: str, changes: Sequence[ConfigChange], *, replaces: bool = False, check_only: bool = False
    ) -> None:
        """Change the overrides of a group. The group need not exist.

        Raises RequestError: INVALID_CONFIG, METADATA_UNAVAILABLE, DISK_FULL.
        """
        await self._change(_of_group(group_id), changes, replaces, check_only)

    async def _change(self, place: _Place, changes: Sequence[ConfigChange], replaces: bool, check_only: bool) -> None:
        def decide(image: ClusterImage) -> list[Change]:
            """Include the inboxes of topics that get `delay.enable` from these settings, and end the ELRs that a lower
            `min.insync.replicas` makes unsafe.
            """
            change, layers = self._decide(place, changes, replaces, image)
            inboxes = missing_inboxes(image, layers.in_force, self._new_id)
            return [*inboxes, change, *ended_eligibilities(image, layers.in_force)]

        if check_only:
            self._decide(place, changes, replaces, self._metadata.image)
        else:
            await self._settled((await self._metadata.propose(decide)).seq)

    def _decide(
        self, place: _Place, changes: Sequence[ConfigChange], replaces: bool, image: ClusterImage
    ) -> tuple[ConfigPut, LayeredSettings]:
        """Return the change of the metadata, and the resulting effective settings. Raises RequestError."""
        stored = {} if replaces else image.configs.get(place.owner, {})
        try:
            present, _ = valid_texts(stored, place.known)
            texts = changed_texts(present, changes, place.known, self.layers.in_force)
            scope, name = place.owner
            return ConfigPut(scope=scope, name=name, texts=texts), place.layered(self.layers, texts)
        except SettingsError as error:
            raise RequestError(place.invalid, str(error)) from error

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.configs is old.configs and old.seq:
            return
        self.layers = as_given(self.layers.given)
        places = [_of_broker(None), _of_broker(self.layers.given.broker.node_id)]
        places += [_of_group(name) for scope, name in new.configs if scope is ConfigScope.GROUPS]
        for place in places:
            if place.owner in new.configs:
                self._take(place, new.configs[place.owner])
        self._apply(self.layers)

    def _take(self, place: _Place, stored: Texts) -> None:
        texts, unknown = valid_texts(stored, place.known)
        owner = "/".join(place.owner)
        if unknown:
            log.warning("settings left out owner=%s names=%s: they cannot change at run time", owner, unknown)
        try:
            self.layers = place.layered(self.layers, texts)
        except SettingsError as error:
            log.error("settings left out owner=%s names=%s reason=%s", owner, sorted(texts), error)


def _of_broker(node_id: int | None) -> _Place:
    return _Place(
        owner=broker_owner(node_id),
        known=broker_settings(),
        layered=lambda layers, texts: with_broker_texts(layers, node_id, texts),
        invalid=ErrorKind.INVALID_REQUEST,
    )


def _of_group(group_id: str) -> _Place:
    return _Place(
        owner=(ConfigScope.GROUPS, group_id),
        known=group_settings(),
        layered=lambda layers, texts: with_group_texts(layers, group_id, texts),
        invalid=ErrorKind.INVALID_CONFIG,
    )
