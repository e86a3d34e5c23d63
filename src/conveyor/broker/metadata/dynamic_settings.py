"""Settings that clients change while the broker runs: kept in the metadata store, then in force at once.

A change is checked together with everything else that is in force, so a value that contradicts another is refused.
What is stored and cannot be in force any more, after a downgrade or a change of conveyor.toml, is left out at the start
and logged; it stays in the store until a client changes or deletes it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from conveyor.cluster.dynamic_config import (
    GROUPS_PATH,
    LayeredSettings,
    Texts,
    as_given,
    broker_path,
    changed_texts,
    decode_texts,
    encode_texts,
    group_of,
    group_path,
    sound_texts,
    with_broker_texts,
    with_group_texts,
)
from conveyor.cluster.setting_names import BrokerSetting, broker_settings, group_settings
from conveyor.cluster.topic_change import ConfigChange
from conveyor.kernel.errors import ErrorKind, RequestError, SettingsError, StorageFailure
from conveyor.kernel.ports import ABSENT, MetadataStore, Versioned
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One node of the metadata tree. `known`: the settings that it may have. `invalid`: the answer to any other."""

    path: str
    known: Mapping[str, BrokerSetting]
    layered: Callable[[LayeredSettings, Texts], LayeredSettings]
    invalid: ErrorKind


class DynamicSettings:
    """See the module's docstring.

    prepare: makes what the broker needs before new settings can be in force; may raise RequestError. apply: puts them
    in force.
    """

    def __init__(
        self,
        given: Settings,
        store: MetadataStore,
        prepare: Callable[[Settings], Awaitable[None]],
        apply: Callable[[LayeredSettings], None],
    ) -> None:
        self.layers = as_given(given)
        self._store = store
        self._prepare = prepare
        self._apply = apply
        self._one_change = asyncio.Lock()

    async def load(self) -> None:
        """Put in force what the metadata store holds. Raises StorageFailure."""
        places = [_of_broker(None), _of_broker(self.layers.given.broker.node_id)]
        places += [_of_group(group_of(path)) for path in await self._store.tree(GROUPS_PATH)]
        for place in places:
            node = await self._store.get(place.path)
            if node is not None:
                self._take(place, decode_texts(node.value))
        self._apply(self.layers)

    async def change_broker(
        self, node_id: int | None, changes: Sequence[ConfigChange], *, replaces: bool = False, check_only: bool = False
    ) -> None:
        """Change settings of this broker, or (None) of all brokers. replaces: settings that are not named are deleted.

        Raises RequestError: INVALID_REQUEST, as Kafka's brokers answer; METADATA_UNAVAILABLE, CLUSTER_CHANGED.
        """
        await self._change(_of_broker(node_id), changes, replaces, check_only)

    async def change_group(
        self, group_id: str, changes: Sequence[ConfigChange], *, replaces: bool = False, check_only: bool = False
    ) -> None:
        """Change what a group has of its own; the group need not exist.

        Raises RequestError: INVALID_CONFIG, METADATA_UNAVAILABLE, CLUSTER_CHANGED.
        """
        await self._change(_of_group(group_id), changes, replaces, check_only)

    async def _change(self, place: _Place, changes: Sequence[ConfigChange], replaces: bool, check_only: bool) -> None:
        async with self._one_change:
            try:
                node = await self._store.get(place.path)
                stored = {} if node is None or replaces else decode_texts(node.value)
                present, _ = sound_texts(stored, place.known)
                texts = changed_texts(present, changes, place.known, self.layers.in_force)
                layers = place.layered(self.layers, texts)
                if check_only:
                    return
                await self._prepare(layers.in_force)
                await self._write(place.path, texts, node)
            except SettingsError as error:
                raise RequestError(place.invalid, str(error)) from error
            except StorageFailure as failure:
                raise RequestError(ErrorKind.METADATA_UNAVAILABLE, str(failure)) from failure
            self.layers = layers
            self._apply(layers)
            log.info("settings changed path=%s settings=%s", place.path, texts)

    async def _write(self, path: str, texts: Texts, node: Versioned | None) -> None:
        """Raises StorageFailure, RequestError (CLUSTER_CHANGED)."""
        if texts:
            version = ABSENT if node is None else node.version
            is_written = await self._store.put(path, encode_texts(texts), version) is not None
        else:
            is_written = node is None or await self._store.delete(path, node.version)
        if not is_written:
            raise RequestError(ErrorKind.CLUSTER_CHANGED, "these settings were changed at the same time: try again")

    def _take(self, place: _Place, stored: Texts) -> None:
        texts, unknown = sound_texts(stored, place.known)
        if unknown:
            log.warning("settings left out path=%s names=%s: they cannot change at run time", place.path, unknown)
        try:
            self.layers = place.layered(self.layers, texts)
        except SettingsError as error:
            log.error("settings left out path=%s names=%s reason=%s", place.path, sorted(texts), error)


def _of_broker(node_id: int | None) -> _Place:
    return _Place(
        path=broker_path(node_id),
        known=broker_settings(),
        layered=lambda layers, texts: with_broker_texts(layers, node_id, texts),
        invalid=ErrorKind.INVALID_REQUEST,
    )


def _of_group(group_id: str) -> _Place:
    return _Place(
        path=group_path(group_id),
        known=group_settings(),
        layered=lambda layers, texts: with_group_texts(layers, group_id, texts),
        invalid=ErrorKind.INVALID_CONFIG,
    )
