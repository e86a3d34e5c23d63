"""Observes and changes the metadata log. Every broker of a cluster proposes; the head of the log orders the entries.

    propose(decide) -> changes, decided on the newest image -> one entry of the metadata log -> observed -> listeners

`image` is the state that this broker has observed. Listeners receive each (old, new) pair in order, before `propose`
returns. An entry is written only while the log's head is the one that the image shows, so it is decided on the image
directly before it. If another broker was first, this one catches up and decides again.

A task follows the entries of other brokers:

    watch of the head fires, or the connection is back -> read the head and watch it -> read and observe the entries

The image never goes back. If an entry is missing because a snapshot has replaced it, the image continues from the
snapshot. With an embedded store there are no other brokers, and the broker itself registers with its first proposal.

A decision of the controller depends on what it has observed outside of the log. It is written only while the
controller's epoch is current. The controller also writes the snapshots.

A start without changes writes nothing, so a broker can start on a full disk and serve its data.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec

from conveyor.broker.metadata.applied_image import AppliedImage
from conveyor.broker.metadata.broker_session import BrokerSession
from conveyor.broker.metadata.log_nodes import LogNodes, NodeMissing
from conveyor.broker.metadata.store_patience import until_answered
from conveyor.broker.tasks import Failed, Tasks
from conveyor.broker.timed_signal import Pauses, TimedSignal
from conveyor.cluster.broker_registration import check_node_id
from conveyor.cluster.changes import BrokerRemoved, Change, ClusterNamed, broker_registered, fold
from conveyor.cluster.cluster_id import new_cluster_id
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.cluster.metadata_log import CONTROLLER_EPOCH_PATH, HEAD_PATH, LOG_PATH, decode_head
from conveyor.kernel.errors import (
    ErrorKind,
    RequestError,
    StorageFailure,
    metadata_failure,
    storage_failure,
)
from conveyor.kernel.ids import NewId, NodeId
from conveyor.kernel.ports import CheckNode, Clock, MetadataStore, SessionState, Versioned
from conveyor.kernel.state_change import StateChange

log = logging.getLogger(__name__)

Decide = Callable[[ClusterImage], Sequence[Change]]
"""A pure function. Raises RequestError to refuse the change."""

Changed = Callable[[ClusterImage, ClusterImage], None]

ENTRIES_PER_SNAPSHOT = 1_000
BYTES_PER_SNAPSHOT = 4 << 20


class ControllerTerm(msgspec.Struct, frozen=True):
    """The epoch in which this broker is the controller, and the version of its node."""

    epoch: int
    version: int

    @property
    def check(self) -> CheckNode:
        """The operation that refuses a commit when another controller was elected."""
        return CheckNode(CONTROLLER_EPOCH_PATH, self.version)


class Elected(msgspec.Struct, frozen=True):
    """A controller, and the epoch that began with its election: 0 with an embedded store, which has no elections."""

    node_id: NodeId
    epoch: int


class Metadata:
    """See the module's docstring. Call `load` before any other method.

    failed: called with a failure that must stop this broker: a bug, or another broker has its id. tasks: those that
    keep this broker in the cluster, until `close`. applied: the image that this broker's partitions show.
    """

    def __init__(
        self,
        store: MetadataStore,
        threads: Executor,
        new_id: NewId,
        clock: Clock,
        failed: Failed,
    ) -> None:
        self.image = ClusterImage()
        self._clock = clock
        self.applied = AppliedImage()
        self.tasks = Tasks(failed)
        self.session = BrokerSession(store, clock, new_id, self.tasks)
        self.term: ControllerTerm | None = None
        """Set while this broker is the controller. It then writes the snapshots."""
        self.elected: Elected | None = None
        """The controller that this broker has observed."""
        self._store = store
        self._new_id = new_id
        self._nodes = LogNodes(store, threads, new_id)
        self._listeners: list[Changed] = []
        self._one_change = asyncio.Lock()
        self._is_embedded = store.session_timeout_ms == 0
        self._head: Versioned | None = None
        self._is_loaded = False
        self._may_be_behind = False
        """Set while the store may hold a change of this broker that the image does not show."""
        self._waiting: tuple[Change, ...] = ()
        """This broker's registration, if the disk had no space for it; it is written with the next change."""
        self._bytes_at_snapshot = 0
        self._proposals: set[asyncio.Task[ClusterImage]] = set()
        self._log_changed = TimedSignal(clock)
        self._is_watched = False

    @property
    def controller_id(self) -> NodeId:
        """The controller, if it is live; else any live broker. Clients send their changes to it, and any broker
        accepts them.
        """
        broker = None if self.elected is None else self.image.brokers.get(self.elected.node_id)
        return self.image.controller_id if broker is None or broker.is_fenced else broker.node_id

    def listen(self, changed: Changed) -> None:
        """Call back with (old, new) after each observed change; after `load`, the old image is empty."""
        self._listeners.append(changed)

    async def load(self, broker: BrokerImage) -> None:
        """Observe the stored metadata and name the cluster, then follow the log. Raises StorageFailure.

        With an embedded store, also register this broker. StartupError: its topics are assigned to another node id.
        """
        image = await until_answered(self._stored_image, self._clock)
        self._is_loaded = True
        self._observe(image)
        if self._is_embedded:
            await self._register(broker)
            self.elected = Elected(broker.node_id, 0)
            return
        await until_answered(self._name_cluster, self._clock)
        self._store.listen(self._session_changed)
        self.tasks.start(self._follow())

    async def propose(self, decide: Decide, term: ControllerTerm | None = None) -> ClusterImage:
        """Decide on changes by the newest image, store them, and return the image that shows them.

        If another writer has changed the image, `decide` is called again. An empty list of changes writes nothing. Once
        the changes are decided they are stored, even if the caller is cancelled.
        term: write only while this broker is the controller of this term.
        Raises RequestError: those of `decide`, METADATA_UNAVAILABLE, DISK_FULL; NOT_CONTROLLER if the term has ended.
        """
        assert self._is_loaded, "call load first"
        proposal = asyncio.ensure_future(self._propose(decide, term))
        self._proposals.add(proposal)
        proposal.add_done_callback(self._proposed)
        return await asyncio.shield(proposal)

    async def propose_all(self, decide: Decide) -> ClusterImage:
        """Propose until nothing changes: one decision may leave a part to the next, as one entry does not hold all."""
        is_done = False

        def noted(image: ClusterImage) -> Sequence[Change]:
            nonlocal is_done
            changes = decide(image)
            is_done = not changes
            return changes

        while not is_done:
            image = await self.propose(noted)
        return image

    async def catch_up(self) -> ClusterImage:
        """Observe everything that is in the log now. Raises StorageFailure."""
        async with self._one_change:
            await self._store.sync()
            await self._catch_up()
            return self.image

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Return once the image meets a condition."""
        met = asyncio.Event()

        def observe(_: ClusterImage, new: ClusterImage) -> None:
            if condition(new):
                met.set()

        self._listeners.append(observe)
        try:
            observe(self.image, self.image)
            await met.wait()
        finally:
            self._listeners.remove(observe)

    async def close(self) -> None:
        """Finish the pending proposals, then end the session."""
        await asyncio.gather(*self._proposals, return_exceptions=True)
        await self.tasks.stop()
        await self._store.close()

    def _proposed(self, proposal: "asyncio.Task[ClusterImage]") -> None:
        self._proposals.discard(proposal)
        if not proposal.cancelled():
            proposal.exception()  # Retrieved here, because a cancelled caller does not.

    async def _propose(self, decide: Decide, term: ControllerTerm | None) -> ClusterImage:
        async with self._one_change:
            try:
                if self._may_be_behind:
                    await self._store.sync()
                    await self._catch_up()
                while changes := decide(self.image):
                    if await self._append((*self._waiting, *changes), term):
                        break
                    await self._store.sync()
                    await self._catch_up()
                    await self._check_term(term)
                await self._write_snapshot_if_due()
            except StorageFailure as failure:
                raise metadata_failure(failure) from failure
            return self.image

    async def _append(self, changes: Sequence[Change], term: ControllerTerm | None) -> bool:
        """Write one entry and observe it. False: the image is not the newest, or the term has ended."""
        if self._head is None and not await self._begin_log():
            return False
        assert self._head is not None
        self._may_be_behind = True
        checks = () if term is None else (term.check,)
        if not await self._nodes.append(self._head, changes, 0 if term is None else term.epoch, *checks):
            return False
        self._waiting = ()
        await self._catch_up()
        return True

    async def _check_term(self, term: ControllerTerm | None) -> None:
        """Raises RequestError (NOT_CONTROLLER)."""
        if term is None:
            return
        node = await self._store.get(CONTROLLER_EPOCH_PATH)
        if node is None or node.version != term.version:
            raise RequestError(ErrorKind.NOT_CONTROLLER, f"the term {term.epoch} of this controller has ended")

    async def _catch_up(self) -> None:
        """Observe every entry after the image, in order. Watch the head, if it is not watched already."""
        self._may_be_behind = True
        node = await self._read_head()
        if node is not None and self._head is not None and decode_head(node.value).seq < self.image.seq:
            await self._store.sync()
            node = await self._read_head()
        if node is None:
            if self._head is not None:
                raise StorageFailure(f"metadata store: node {HEAD_PATH} is missing")
            self._may_be_behind = False
            return
        seq = decode_head(node.value).seq
        if self._head is not None and seq < self.image.seq:
            raise StorageFailure(f"metadata store: the log goes back from entry {self.image.seq} to {seq}")
        if self._head is None:
            node, image = await self._read_image(node)
            self._observe(image)
        else:
            node = await self._apply_entries(node)
        if self._head is not None and decode_head(self._head.value).snapshot != decode_head(node.value).snapshot:
            self._bytes_at_snapshot = self._nodes.bytes_read
        self._head = node
        self._may_be_behind = False

    async def _read_head(self) -> Versioned | None:
        if self._is_embedded or self._is_watched:
            return await self._nodes.head()
        self._is_watched = True
        try:
            return await self._nodes.head(self._head_changed)
        except StorageFailure:
            self._is_watched = False
            raise

    async def _apply_entries(self, node: Versioned) -> Versioned:
        """Observe the entries up to a head; from a newer snapshot, if it has replaced some. Returns the head."""
        try:
            async for seq, changes in self._nodes.entries(self.image.seq, decode_head(node.value).seq):
                self._observe(fold(self.image, changes, seq))
        except NodeMissing:
            node, image = await self._read_image(await self._newest_head(node))
            if image.seq <= self.image.seq:  # Not replaced by a snapshot: damaged.
                raise
            self._observe(image)
        return node

    async def _read_image(self, node: Versioned) -> tuple[Versioned, ClusterImage]:
        """Return the image at the end of the log, and its head. If snapshots replace it meanwhile, read the newest."""
        while True:
            try:
                return node, await self._nodes.image(decode_head(node.value))
            except NodeMissing:
                newest = await self._newest_head(node)
                if decode_head(newest.value).snapshot == decode_head(node.value).snapshot:
                    raise
                node = newest

    async def _newest_head(self, node: Versioned) -> Versioned:
        await self._store.sync()
        return await self._nodes.head() or node

    def _observe(self, image: ClusterImage) -> None:
        """Publish an image to all listeners. Raise InconsistentState after the last call if one has failed."""
        old, self.image = self.image, image
        with StateChange(f"a listener of image {image.seq} has failed"), contextlib.ExitStack() as calls:
            for changed in reversed(self._listeners):
                calls.callback(changed, old, image)

    def _head_changed(self) -> None:
        self._is_watched = False
        self._log_changed.set()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._log_changed.set()

    async def _follow(self) -> None:
        """Observe the entries of other brokers. After a failure, try again forever."""
        pauses = Pauses()
        while True:
            try:
                async with self._one_change:
                    await self._catch_up()
                    await self._write_snapshot_if_due()
            except StorageFailure as failure:
                log.log(pauses.log_level, "metadata log not followed seq=%d reason=%s", self.image.seq, failure)
                await self._log_changed.wait(pauses.next_ms())
            else:
                pauses.reset()
                await self._log_changed.wait()

    async def _write_snapshot_if_due(self) -> None:
        """After a failure the next change tries again. In a cluster, only the controller writes snapshots."""
        if self._head is None or self._may_be_behind or (self.term is None and not self._is_embedded):
            return
        count = self.image.seq - decode_head(self._head.value).snapshot
        is_large = self._nodes.bytes_read - self._bytes_at_snapshot >= BYTES_PER_SNAPSHOT
        if not count or (count < ENTRIES_PER_SNAPSHOT and not is_large):
            return
        checks = () if self.term is None else (self.term.check,)
        try:
            await self._nodes.write_snapshot(self._head, self.image, *checks)
            await self._catch_up()
        except StorageFailure as failure:
            self._may_be_behind = True
            log.warning("metadata snapshot not written seq=%d reason=%s", self.image.seq, failure)

    async def _stored_image(self) -> ClusterImage:
        """Return the stored image, and remember its head. Raises StorageFailure.

        It is the newest one: a start sets aside what this image does not assign to its broker.
        """
        await self._store.sync()
        self._head = await self._nodes.head()
        if self._head is None:
            rest = [*await self._store.tree(LOG_PATH)]
            if await self._store.get(CONTROLLER_EPOCH_PATH) is not None:
                rest.append(CONTROLLER_EPOCH_PATH)
            self._head = await self._nodes.head()  # Another broker may have created the log meanwhile.
            if self._head is None and rest:
                raise StorageFailure(f"metadata store: node {HEAD_PATH} is missing, but there is {min(rest)}")
        if self._head is None:
            return ClusterImage()
        self._head, image = await self._read_image(self._head)
        return image

    async def _begin_log(self) -> bool:
        """Create the log with an empty snapshot. False: another broker has created it meanwhile."""
        self._may_be_behind = True
        if not await self._nodes.begin():
            return False
        self._head = await self._nodes.head()
        return self._head is not None and decode_head(self._head.value).seq == 0

    async def _name_cluster(self) -> None:
        """Give the cluster its id, if it has none. Raises StorageFailure."""
        try:
            await self.propose(self._named)
        except RequestError as error:
            raise storage_failure(error) from error

    def _named(self, image: ClusterImage) -> list[Change]:
        return [] if image.cluster_id else [ClusterNamed(cluster_id=new_cluster_id(self._new_id))]

    async def _register(self, broker: BrokerImage) -> None:
        """Add this broker and the cluster's id to the metadata. If the disk has no space, only the image shows them for
        now.

        An embedded store has one broker, so other brokers in its image are earlier node ids of this one.
        Raises StorageFailure; StartupError if the topics are assigned to an earlier node id.
        """
        check_node_id(self.image, broker.node_id)

        def decide(image: ClusterImage) -> list[Change]:
            changes = self._named(image)
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
