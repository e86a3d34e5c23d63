"""Creating and deleting topics: decided by `cluster`, made durable in the metadata store, then served."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.image import (
    COMPANIONS,
    INBOX,
    OFFSETS_TOPIC,
    TOPICS_PATH,
    ClusterImage,
    TopicImage,
    companion,
    companion_of,
    decode_topic,
    encode_topic,
    is_companion,
    is_internal,
    topic_path,
)
from conveyor.cluster.internal_topics import own_config
from conveyor.cluster.topic_change import (
    ConfigChange,
    changed_config,
    more_partitions,
    raised_epochs,
    replaced_config,
)
from conveyor.cluster.topic_creation import TopicRequest, plan_topic
from conveyor.kernel.errors import DiskFull, ErrorKind, RequestError, StorageFailure, metadata_failure
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import ABSENT, ANY_VERSION, Disk, MetadataStore
from conveyor.log.log import Log
from conveyor.settings.tree import Settings, topic_settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Topics:
    """The topics of this broker, and the image that shows them."""

    def __init__(
        self,
        *,
        image: ClusterImage,
        store: MetadataStore,
        partitions: PartitionTable,
        disk: Disk,
        settings: Settings,
        threads: Executor,
        new_id: Callable[[], UUID],
    ) -> None:
        self.image = image
        self._store = store
        self._partitions = partitions
        self._disk = disk
        self.settings = settings
        self._threads = threads
        self._new_id = new_id
        self._one_change = asyncio.Lock()
        self._when_deleted: list[Callable[[TopicImage], Awaitable[None]]] = []
        self._when_grown: list[Callable[[str], Awaitable[None]]] = []
        self._being_made: dict[str, asyncio.Future[TopicImage]] = {}
        self._epochs_due: dict[str, set[int]] = {}
        """Partitions, by topic, whose leader epoch is still to be raised; they are read-only."""
        self._being_deleted: set[str] = set()

    async def load(self) -> None:
        """Open every topic of the metadata store. Raises StorageFailure if the store cannot be read."""
        nodes = await self._store.tree(TOPICS_PATH)
        topics = [decode_topic(path.rpartition("/")[2], node.value) for path, node in nodes.items()]
        topics = await self._without_orphans(topics)
        await self._off_loop(self._partitions.set_strays_aside, {topic.name: topic for topic in topics})
        for number, loaded in enumerate(topics):
            topic = await self._with_own_config(loaded)
            logs = await self._off_loop(self._partitions.open_logs, topic)
            topics[number] = await self._with_new_epochs(topic, logs)
            self._partitions.add(topics[number], logs)
            self._hold_back_epochs(topic.name)
        self.image = self.image.with_topics(*topics)
        await self._grow_offsets_topic()

    async def _with_own_config(self, topic: TopicImage) -> TopicImage:
        """An internal topic with the settings that it must have, durably. Raises StorageFailure."""
        mended = replace(topic, config={**topic.config, **own_config(topic.name)})
        if mended == topic:
            return topic
        log.warning("topic settings mended name=%s config=%s was=%s", topic.name, mended.config, dict(topic.config))
        await self._store.put(topic_path(topic.name), encode_topic(mended))
        return mended

    async def _grow_offsets_topic(self) -> None:
        """Give the topic of the consumer groups the partitions that it should have, while nothing is written to it.

        Later the number must stay: it decides which partition holds a group.
        """
        topic, wanted = self.image.topics.get(OFFSETS_TOPIC), self.settings.groups.offsets_partitions
        if topic is None or len(topic.partitions) == wanted:
            return
        reason = "groups would lose their committed offsets"
        if self._partitions.is_empty(topic):
            try:
                return await self._grow(topic.name, wanted)
            except RequestError as error:
                reason = error.message
        log.warning(
            "topic partitions kept name=%s partitions=%d groups.offsets_partitions=%d reason=%s",
            topic.name, len(topic.partitions), wanted, reason,
        )  # fmt: skip

    async def _without_orphans(self, topics: Sequence[TopicImage]) -> list[TopicImage]:
        """Forget companions whose topic is gone: the broker has ended between the two. Raises StorageFailure."""
        names = {topic.name for topic in topics}
        kept: list[TopicImage] = []
        for topic in topics:
            owner = next((each for kind in COMPANIONS if (each := companion_of(kind, topic.name))), topic.name)
            if owner in names:
                kept.append(topic)
                continue
            log.warning("companion without its topic removed name=%s", topic.name)
            with suppress(DiskFull):  # The next start does it then.
                await self._store.delete(topic_path(topic.name))
        return kept

    async def raise_epochs(self) -> None:
        """Store the leader epochs that found no room before. Raises StorageFailure."""
        for name in list(self._epochs_due):
            async with self._one_change:
                topic, numbers = self.image.topics.get(name), self._epochs_due[name]
                if topic is not None:
                    changed = raised_epochs(topic, numbers)
                    await self._store.put(topic_path(name), encode_topic(changed))
                    self.image = self.image.with_topics(changed)
                    self._partitions.begin_epochs(changed, numbers)
                del self._epochs_due[name]

    async def reopen(self, name: str, number: int) -> None:
        """Open a partition again whose failure may have passed; the topic does not change meanwhile."""
        async with self._one_change:
            topic = self.image.topics.get(name)
            if topic is None or not self._partitions.may_return(name, number):
                return
            is_first = self._partitions.was_never_open(name, number)
            opened = await self._off_loop(self._partitions.open_log, topic, number)
            self._partitions.replace(topic, number, opened)
            if is_first and isinstance(opened, Log) and not opened.was_stopped_cleanly:
                self._epochs_due.setdefault(name, set()).add(number)
            self._hold_back_epochs(name)

    async def _with_new_epochs(self, topic: TopicImage, logs: Sequence[Log | StorageFailure]) -> TopicImage:
        """After a crash, durably; without room for that, the epochs are due later. Raises StorageFailure."""
        numbers = {number for number, each in enumerate(logs) if isinstance(each, Log) and not each.was_stopped_cleanly}
        if not numbers:
            return topic
        changed = raised_epochs(topic, numbers)
        try:
            await self._store.put(topic_path(topic.name), encode_topic(changed))
        except DiskFull:
            self._epochs_due[topic.name] = numbers
            return topic
        return changed

    def _hold_back_epochs(self, name: str) -> None:
        """What is appended in an epoch that began before a crash could pass for what the crash has lost."""
        for number in self._epochs_due.get(name, ()):
            self._partitions.hold_back(name, number)

    def existing(self, name: str) -> TopicImage:
        """Raises RequestError (UNKNOWN_TOPIC)."""
        topic = self.image.topics.get(name)
        if topic is None or name in self._being_deleted:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{name}' is not there")
        return topic

    def check(self, request: TopicRequest) -> TopicImage:
        """The topic that `create` would make. Raises RequestError."""
        return plan_topic(self.image, request, self.settings, TopicId(self._new_id()))

    async def create(self, request: TopicRequest) -> TopicImage:
        """Make a topic; it is durable and served when this returns. Raises RequestError."""
        topic = self.check(request)
        if topic.name in self._being_made:
            raise _exists(topic.name)
        being_made = self._being_made[topic.name] = asyncio.ensure_future(self._make(topic))
        being_made.add_done_callback(lambda _: self._being_made.pop(topic.name))
        return await asyncio.shield(being_made)  # What is stored is served, though nobody waits for it any more.

    async def ensure(self, request: TopicRequest) -> TopicImage:
        """The topic, made if it is not there. Raises RequestError."""
        existing = self.image.topics.get(request.name)
        if existing is not None:
            return existing
        being_made = self._being_made.get(request.name)
        return await (self.create(request) if being_made is None else asyncio.shield(being_made))

    async def ensure_offsets_topic(self) -> TopicImage:
        """The internal topic of the consumer groups."""
        return await self.ensure(TopicRequest(name=OFFSETS_TOPIC))

    async def ensure_companion(self, kind: str, name: str) -> TopicImage:
        """A topic that goes with another, partition by partition. Its records are its owner's to trim.

        Raises RequestError: also INVALID_TOPIC, if the name leaves no room.
        """
        return await self._ensure_companion(kind, self.existing(name))

    async def ensure_inboxes(self) -> None:
        """Those of topics that shall have one, by the broker's defaults or after a crash. Raises StorageFailure."""
        for topic in [each for each in self.image.topics.values() if self._delays(each)]:
            try:
                await self._ensure_companion(INBOX, topic)
            except RequestError as error:
                raise StorageFailure(f"topic '{topic.name}' has delay.enable, and no inbox: {error}") from error

    async def prepare(self, settings: Settings) -> None:
        """Make the inboxes of topics that get `delay.enable` with these settings of the broker. Raises RequestError."""
        for name in list(self.image.topics):
            topic = self.image.topics.get(name)  # It may be deleted while the inbox of another is made.
            if topic is not None and _delays(topic, settings) and not self._delays(topic):
                await self._ensure_companion(INBOX, topic)

    def use(self, settings: Settings) -> None:
        """Let these settings of the broker hold from now on; `prepare` has run."""
        has_changed = settings.topics != self.settings.topics
        self.settings = settings
        if has_changed:
            self._partitions.use(settings.topics, self.image.topics.values())

    async def change_config(self, name: str, changes: Sequence[ConfigChange], *, check_only: bool = False) -> None:
        """Change some settings of a topic, at once and durably. Raises RequestError."""
        _refuse_companion(name)
        await self._configure(name, lambda topic: changed_config(topic, changes, self.settings), check_only)

    async def replace_config(self, name: str, config: Mapping[str, str], *, check_only: bool = False) -> None:
        """Give a topic these settings, and the defaults for all others. Raises RequestError."""
        _refuse_companion(name)
        await self._configure(name, lambda topic: replaced_config(topic, config, self.settings), check_only)

    async def add_partitions(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None, *, check_only: bool = False
    ) -> None:
        """Add partitions to a topic until there are `count`. Raises RequestError."""
        if is_internal(name):
            raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{name}' is the broker's own")
        await self._grow(name, count, assignment, check_only=True)
        if check_only:
            return
        for each in self._companions(name):
            if len(each.partitions) < count:
                await self._grow(each.name, count)
        await self._grow(name, count, assignment)
        for grown in self._when_grown:
            await grown(name)

    async def delete(self, name: str) -> None:
        """Delete a topic, its companions, and their records. Raises RequestError.

        The topic goes from the metadata first: what fails before that has changed nothing, and what fails later is
        finished by the next start. Its name is free last: another topic of this name finds no companions.
        """
        async with self._one_change:
            topic = self.existing(name)
            if topic.is_internal:
                raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{name}' is the broker's own")
            await self._delete_node(topic)
            self._being_deleted.add(name)
            try:
                await self._delete_companions(name)
                await self._unserve(topic)
            finally:
                self._being_deleted.discard(name)
        for deleted in self._when_deleted:
            await deleted(topic)

    def when_deleted(self, deleted: Callable[[TopicImage], Awaitable[None]]) -> None:
        """Call back after a topic was deleted."""
        self._when_deleted.append(deleted)

    def when_grown(self, grown: Callable[[str], Awaitable[None]]) -> None:
        """Call back after a topic got more partitions."""
        self._when_grown.append(grown)

    async def _delete_node(self, topic: TopicImage) -> None:
        try:
            await self._store.delete(topic_path(topic.name))
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure

    async def _delete_companions(self, name: str) -> None:
        """Also those that are being made."""
        made = [self._being_made[each] for each in _companion_names(name) if each in self._being_made]
        await asyncio.gather(*made, return_exceptions=True)
        for each in self._companions(name):
            try:
                await self._delete_node(each)
            except RequestError as error:
                log.warning("companion stays in the metadata name=%s: %s", each.name, error)
            await self._unserve(each)

    async def _unserve(self, topic: TopicImage) -> None:
        """The rest of a deletion. A directory that cannot be removed now is removed or set aside by the next start."""
        self.image = self.image.without_topic(topic.name)
        for directory in self._partitions.remove(topic):
            try:
                await self._off_loop(self._disk.remove_tree, directory)
            except StorageFailure as failure:
                log.warning("directory of a deleted topic stays name=%s: %s", directory, failure)
        log.info("topic deleted name=%s id=%s", topic.name, topic.topic_id)

    async def _ensure_companion(self, kind: str, topic: TopicImage) -> TopicImage:
        if topic.name in self._being_deleted:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' is being deleted")
        name, count = companion(kind, topic.name), len(topic.partitions)
        made = await self.ensure(TopicRequest(name=name, partitions=count, is_companion=True))
        if len(made.partitions) < count:
            await self._grow(name, count)
        return self.existing(name)

    def _delays(self, topic: TopicImage) -> bool:
        return _delays(topic, self.settings)

    async def _configure(self, name: str, change: Callable[[TopicImage], TopicImage], check_only: bool) -> None:
        """A topic that shall have an inbox has it before the change is seen."""
        topic = self.existing(name)
        changed = change(topic)
        if not check_only and self._delays(changed) and not self._delays(topic):
            await self.ensure_companion(INBOX, name)
        await self._change(name, change, check_only)

    def _companions(self, name: str) -> list[TopicImage]:
        return [self.image.topics[each] for each in _companion_names(name) if each in self.image.topics]

    async def _grow(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None = None, check_only: bool = False
    ) -> None:
        await self._change(
            name, lambda topic: more_partitions(self.image, topic, count, assignment, self.settings), check_only
        )

    async def _make(self, topic: TopicImage) -> TopicImage:
        if self._delays(topic):
            await self._ensure_companion(INBOX, topic)
        try:
            written = await self._store.put(
                topic_path(topic.name),
                encode_topic(topic),
                ANY_VERSION if is_companion(topic.name) else ABSENT,  # That of a deleted topic may be left.
            )
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure
        if written is None:
            raise _exists(topic.name)
        self._partitions.add(topic, await self._off_loop(self._partitions.open_logs, topic))
        self.image = self.image.with_topics(topic)
        log.info("topic created name=%s partitions=%d id=%s", topic.name, len(topic.partitions), topic.topic_id)
        return topic

    async def _change(self, name: str, change: Callable[[TopicImage], TopicImage], check_only: bool) -> None:
        """Changes are made one after the other, each on what the one before has left."""
        async with self._one_change:
            topic = self.existing(name)
            changed = change(topic)
            if check_only or changed == topic:
                return
            await self._write(changed)
            if len(changed.partitions) > len(topic.partitions):
                self._partitions.add(changed, await self._off_loop(self._partitions.open_missing_logs, changed))
            if name in self.image.topics:
                self.image = self.image.with_topics(changed)
                self._partitions.configure(changed)
                log.info("topic changed name=%s partitions=%d config=%s", name, len(changed.partitions), changed.config)

    async def _write(self, changed: TopicImage) -> None:
        path = topic_path(changed.name)
        try:
            node = await self._store.get(path)
            written = None if node is None else await self._store.put(path, encode_topic(changed), node.version)
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure
        if written is None:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{changed.name}' is being deleted")

    async def _off_loop(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def _delays(topic: TopicImage, settings: Settings) -> bool:
    return not topic.is_internal and topic_settings(settings.topics, topic.config).delay_enable


def _companion_names(name: str) -> list[str]:
    return [companion(kind, name) for kind in COMPANIONS]


def _refuse_companion(name: str) -> None:
    if is_companion(name):
        raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{name}' is the broker's own")


def _exists(name: str) -> RequestError:
    return RequestError(ErrorKind.TOPIC_ALREADY_EXISTS, f"topic '{name}' exists already")
