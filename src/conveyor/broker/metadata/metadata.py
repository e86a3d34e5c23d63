"""Observes and changes the metadata store. No other module uses the store.

    propose(decide) -> changes, decided on the newest image -> one entry of the metadata log -> observed -> listeners

`image` is the state that this broker has observed. Listeners receive each (old, new) pair in order, before `propose`
returns. A single broker is its own controller: it claims the controller's epoch with its first write. An entry is
written only while that epoch is current and the log's end matches the image. See `conveyor.cluster.metadata_log` for
the nodes.

A start without changes writes nothing, so a broker can start on a full disk and serve its data.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from uuid import UUID

from conveyor.cluster import legacy_tree
from conveyor.cluster.broker_registration import check_node_id
from conveyor.cluster.changes import BrokerRemoved, Change, ClusterNamed, broker_registered, fold, whole_image
from conveyor.cluster.cluster_id import new_cluster_id
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.cluster.metadata_log import (
    CONTROLLER_EPOCH_PATH,
    ENTRIES_PATH,
    HEAD_PATH,
    LOG_PATH,
    SNAPSHOTS_PATH,
    LogEntry,
    LogHead,
    chunk_path,
    decode_chunk,
    decode_controller_epoch,
    decode_entry,
    decode_head,
    encode_entry,
    encode_head,
    encode_snapshot,
    entry_path,
    snapshot_path,
)
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure, metadata_failure
from conveyor.kernel.ports import ABSENT, CheckNode, DeleteNode, MetadataStore, PutNode, StoreOperation, Versioned

log = logging.getLogger(__name__)

Decide = Callable[[ClusterImage], Sequence[Change]]
"""A pure function. Raises RequestError to refuse the change."""

Changed = Callable[[ClusterImage, ClusterImage], None]

ENTRIES_PER_SNAPSHOT = 1_000
BYTES_PER_SNAPSHOT = 4 << 20
_READS_AT_ONCE = 32
_DELETES_AT_ONCE = 200


class Metadata:
    """See the module's docstring. Call `load` before any other method."""

    def __init__(self, store: MetadataStore, threads: Executor, new_id: Callable[[], UUID]) -> None:
        self.image = ClusterImage()
        self._store = store
        self._threads = threads
        self._new_id = new_id
        self._listeners: list[Changed] = []
        self._one_change = asyncio.Lock()
        self._is_embedded = store.session_timeout_ms == 0
        self._head: Versioned | None = None
        self._legacy: list[Change] | None = None
        """The metadata that an earlier version has stored, until it is written as the first snapshot."""
        self._is_loaded = False
        self._may_be_behind = False
        """Set while the store may hold a change of this broker that the image does not show."""
        self._waiting: tuple[Change, ...] = ()
        """This broker's registration, if the disk had no space for it; it is written with the next change."""
        self._controller: tuple[int, int] | None = None
        """The epoch that this broker has claimed, and the version of its node."""
        self._bytes_since_snapshot = 0
        self._proposals: set[asyncio.Task[ClusterImage]] = set()

    def listen(self, changed: Changed) -> None:
        """Call back with (old, new) after each observed change; after `load`, the old image is empty."""
        self._listeners.append(changed)

    async def load(self, broker: BrokerImage) -> None:
        """Observe the stored metadata, then register this broker. Raises StorageFailure."""
        self._head = await self._store.get(HEAD_PATH)
        if self._head is None:
            nodes = await self._store.tree("/" if self._is_embedded else LOG_PATH)
            image = self._from_legacy({path: node.value for path, node in nodes.items()})
        else:
            image = await self._from_snapshot(decode_head(self._head.value))
        self._is_loaded = True
        self._observe(image)
        await self._register(broker)

    async def propose(self, decide: Decide) -> ClusterImage:
        """Decide on changes by the newest image, store them, and return the image that shows them.

        If another writer has changed the image, `decide` is called again. An empty list of changes writes nothing. Once
        the changes are decided they are stored, even if the caller is cancelled.
        Raises RequestError: those of `decide`, METADATA_UNAVAILABLE, DISK_FULL.
        """
        assert self._is_loaded, "call load first"
        proposal = asyncio.ensure_future(self._propose(decide))
        self._proposals.add(proposal)
        proposal.add_done_callback(self._proposed)
        return await asyncio.shield(proposal)

    async def close(self) -> None:
        """Finish the pending proposals, then end the session."""
        await asyncio.gather(*self._proposals, return_exceptions=True)
        await self._store.close()

    def _proposed(self, proposal: "asyncio.Task[ClusterImage]") -> None:
        self._proposals.discard(proposal)
        if not proposal.cancelled():
            proposal.exception()  # Retrieved here, because a cancelled caller does not.

    async def _propose(self, decide: Decide) -> ClusterImage:
        async with self._one_change:
            try:
                if self._may_be_behind:
                    await self._catch_up()
                while changes := decide(self.image):
                    if await self._append((*self._waiting, *changes)):
                        break
                    await self._catch_up()
            except StorageFailure as failure:
                raise metadata_failure(failure) from failure
            return self.image

    async def _append(self, changes: Sequence[Change]) -> bool:
        """Write one entry and observe it. False: the image is not the newest, or another broker is controller."""
        if not await self._begin_log():
            return False
        epoch, epoch_version = await self._claim()
        assert self._head is not None
        before = decode_head(self._head.value)
        head = LogHead(seq=before.seq + 1, snapshot=before.snapshot, chunks=before.chunks, batch=self._new_id())
        entry = encode_entry(LogEntry(controller_epoch=epoch, changes=tuple(changes)))
        written = await self._commit_head(
            head,
            CheckNode(CONTROLLER_EPOCH_PATH, epoch_version),
            PutNode(entry_path(head.seq), entry),
        )
        if not written:
            self._controller = None
            return False
        self._waiting = ()
        await self._catch_up()
        if head.seq - head.snapshot >= ENTRIES_PER_SNAPSHOT or self._bytes_since_snapshot >= BYTES_PER_SNAPSHOT:
            await self._snapshot()
        return True

    async def _commit_head(self, head: LogHead, *operations: StoreOperation) -> bool:
        """Write the head together with other nodes. After a failure, read back whether the write has succeeded."""
        version = ABSENT if self._head is None else self._head.version
        self._may_be_behind = True
        try:
            return await self._store.commit(*operations, PutNode(HEAD_PATH, encode_head(head), version)) is not None
        except StorageFailure:
            await self._store.sync()
            present = await self._store.get(HEAD_PATH)
            if present is None or decode_head(present.value).batch != head.batch:
                raise
            return True

    async def _claim(self) -> tuple[int, int]:
        """Become the controller. Returns this broker's epoch and the version of its node."""
        while self._controller is None:
            node = await self._store.get(CONTROLLER_EPOCH_PATH)
            epoch = 1 if node is None else decode_controller_epoch(node.value) + 1
            version = ABSENT if node is None else node.version
            claimed = await self._store.commit(PutNode(CONTROLLER_EPOCH_PATH, str(epoch).encode(), version))
            if claimed is not None:
                self._controller = epoch, claimed[0]
        return self._controller

    async def _catch_up(self) -> None:
        """Observe every entry after the image, in order."""
        await self._store.sync()
        node = await self._store.get(HEAD_PATH)
        if node is None:
            if self._head is not None:
                raise StorageFailure(f"metadata store: node {HEAD_PATH} is missing")
            self._may_be_behind = False
            return
        head = decode_head(node.value)
        if self._head is None or head.snapshot > self.image.seq:
            self._observe(await self._from_snapshot(head))
        else:
            await self._apply_entries(head.seq)
        self._head = node
        self._may_be_behind = False

    async def _apply_entries(self, last_seq: int) -> None:
        for first in range(self.image.seq + 1, last_seq + 1, _READS_AT_ONCE):
            seqs = range(first, min(first + _READS_AT_ONCE, last_seq + 1))
            for seq, changes in zip(seqs, await asyncio.gather(*map(self._read_entry, seqs)), strict=True):
                self._observe(fold(self.image, changes, seq))

    async def _read_entry(self, seq: int) -> Sequence[Change]:
        node = await self._store.get(entry_path(seq))
        if node is None:
            raise StorageFailure(f"metadata store: entry {seq} of the metadata log is missing")
        self._bytes_since_snapshot += len(node.value)
        return decode_entry(seq, node.value).changes

    def _observe(self, image: ClusterImage) -> None:
        """Publish an image to all listeners. A listener's exception is a bug; it is raised after the last call."""
        old, self.image = self.image, image
        with contextlib.ExitStack() as calls:
            for changed in reversed(self._listeners):
                calls.callback(changed, old, image)

    async def _from_snapshot(self, head: LogHead) -> ClusterImage:
        """Return the stored image: the snapshot and the entries after it."""
        image = ClusterImage()
        for number in range(head.chunks):
            path = chunk_path(head.snapshot, number)
            node = await self._store.get(path)
            if node is None:
                raise StorageFailure(f"metadata store: node {path} is missing")
            image = fold(image, decode_chunk(path, node.value), head.snapshot)
        for seq in range(head.snapshot + 1, head.seq + 1):
            image = fold(image, await self._read_entry(seq), seq)
        return image

    async def _snapshot(self) -> None:
        """Store the whole image, then remove the nodes that it replaces.

        After a failure the next snapshot removes them.
        """
        assert self._head is not None
        before, image = decode_head(self._head.value), self.image
        try:
            parts = await self._off_loop(lambda: encode_snapshot(whole_image(image)))
            for number, part in enumerate(parts):
                await self._store.commit(PutNode(chunk_path(image.seq, number), part))
            head = LogHead(seq=image.seq, snapshot=image.seq, chunks=len(parts), batch=self._new_id())
            if await self._commit_head(head):
                self._bytes_since_snapshot = 0
                await self._catch_up()
                await self._trim(before.snapshot)
        except StorageFailure as failure:
            log.warning("metadata snapshot not written seq=%d reason=%s", image.seq, failure)

    async def _trim(self, old_snapshot: int) -> None:
        """Remove entries and snapshots before the last snapshot but one, which another broker may still read."""
        snapshots = [f"{SNAPSHOTS_PATH}/{name}" for name in await self._store.children(SNAPSHOTS_PATH)]
        entries = [f"{ENTRIES_PATH}/{name}" for name in await self._store.children(ENTRIES_PATH)]
        needless = [path for path in snapshots if path < snapshot_path(old_snapshot)]
        needless += [path for path in entries if path <= entry_path(old_snapshot)]
        for first in range(0, len(needless), _DELETES_AT_ONCE):
            await self._store.commit(*map(DeleteNode, needless[first : first + _DELETES_AT_ONCE]))

    def _from_legacy(self, nodes: legacy_tree.Nodes) -> ClusterImage:
        """Return the image in nodes of an earlier version, or an empty one.

        Raises StorageFailure for a log without a head.
        """
        rest = sorted(path for path in nodes if path.startswith(("/log/", CONTROLLER_EPOCH_PATH)))
        if rest:
            raise StorageFailure(f"metadata store: node {HEAD_PATH} is missing, but there is {rest[0]}")
        self._legacy = legacy_tree.changes_of(nodes)
        return fold(ClusterImage(), self._legacy, seq=0)

    async def _begin_log(self) -> bool:
        """Create the log with a snapshot of an earlier version's metadata, and remove the old nodes.

        From then on an earlier version refuses to start. Earlier versions have used embedded stores only. In another
        store, nodes of these names belong to somebody else, such as Kafka's `/config`.

        False: another broker has created the log meanwhile.
        """
        if self._head is not None:
            return True
        parts = encode_snapshot(self._legacy or ())
        head = LogHead(seq=0, snapshot=0, chunks=len(parts), batch=self._new_id())
        removed = [DeleteNode(root) for root in legacy_tree.ROOTS if self._is_embedded]
        refusal = [PutNode(path, content) for path, content in legacy_tree.REFUSAL.items() if self._is_embedded]
        chunks = [PutNode(chunk_path(0, number), part) for number, part in enumerate(parts)]
        if not await self._commit_head(head, *chunks, *removed, *refusal):
            return False
        self._legacy = None
        self._head = await self._store.get(HEAD_PATH)
        return self._head is not None and decode_head(self._head.value).batch == head.batch

    async def _register(self, broker: BrokerImage) -> None:
        """Add this broker and the cluster's id to the metadata. If the disk has no space, only the image shows them for
        now.

        An embedded store has one broker, so other brokers in its image are earlier node ids of this one.
        Raises StorageFailure; StartupError if the topics are assigned to an earlier node id.
        """
        check_node_id(self.image, broker.node_id)

        def decide(image: ClusterImage) -> list[Change]:
            changes: list[Change] = []
            if not image.cluster_id:
                changes.append(ClusterNamed(cluster_id=new_cluster_id(self._new_id)))
            changes += [BrokerRemoved(node_id=other) for other in image.brokers if other != broker.node_id]
            if image.brokers.get(broker.node_id) != broker:
                changes.append(registration)
            return changes

        registration = broker_registered(broker)
        try:
            await self.propose(decide)
        except RequestError as error:
            if error.kind is not ErrorKind.DISK_FULL or not self.image.cluster_id:
                raise StorageFailure(error.message) from error
            log.warning("broker not registered in the metadata reason=%s", error)
            self._waiting = tuple(decide(self.image))
            self._observe(fold(self.image, self._waiting, self.image.seq))

    async def _off_loop(self, work: Callable[[], list[bytes]]) -> list[bytes]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
