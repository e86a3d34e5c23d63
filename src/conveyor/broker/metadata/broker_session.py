"""This broker's registration among the live brokers of the cluster, kept up as long as the broker runs.

    /broker-epoch                 never deleted; its version after a commit is the epoch of the broker that registers
    /brokers/<id>.<incarnation>   ephemeral: `Registration`, as JSON

    commit of both nodes -> registered -> heartbeats -> lost -> a new incarnation registers, forever

The registration is lost when the store's session ends, or when a heartbeat finds the node gone. From that moment this
broker leads nothing: other brokers may lead its partitions. A heartbeat is a read that shows the newest state of the
store. Its answer proves that the session was alive when it was sent; for two thirds of the session timeout from then on
the broker holds its lease: no other broker can have taken its place. A lost connection alone changes nothing until that
time.

Another registration under the same id is dead if its process held the lock that this process holds: it is deleted in
the commit of the own one. Any other one that does not end within two session timeouts keeps this broker from starting,
or stops it: it may be a live broker, even if it shows the same data directory, which may be a copy. A store ends a
session at one of its ticks, so a session may outlive its timeout.

Each attempt to register is noted in the data directory first, so that the directory that has registered last
can be distinguished from its copies; see `replica_facts`.

With an embedded store there is one broker, which is always registered and holds its lease.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from conveyor.broker.metadata.store_patience import until_answered
from conveyor.broker.tasks import Tasks
from conveyor.broker.timed_signal import Pauses, TimedSignal
from conveyor.cluster.controller.registrations import Registration
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ids import NewId
from conveyor.kernel.peers import PeerIdentity
from conveyor.kernel.ports import ABSENT, Clock, DeleteNode, MetadataStore, PutNode, SessionState
from conveyor.kernel.signal import Signal

log = logging.getLogger(__name__)

Claim = Callable[[Registration], Awaitable[Registration]]
"""Notes the incarnation of a registration in the data directory. Returns the registration with all that the directory
knows of itself. Raises StorageFailure.
"""

BROKERS_PATH = "/brokers"
BROKER_EPOCH_PATH = "/broker-epoch"

_HEARTBEATS_PER_TIMEOUT = 6
_PATIENCE = 2
"""A broker waits this many session timeouts for the end of another registration of its id."""


def registration_path(registration: Registration) -> str:
    return f"{BROKERS_PATH}/{registration.node_id}.{registration.incarnation}"


def decode_registration(path: str, content: bytes) -> Registration:
    """Return the decoded registration. Raises StorageFailure."""
    try:
        return msgspec.json.decode(content, type=Registration)
    except msgspec.MsgspecError as error:
        raise StorageFailure(f"metadata store: node {path} is damaged, or a later version wrote it: {error}") from error


class BrokerSession:
    """See the module's docstring. tasks: in which this broker stays registered; a failure must stop this broker.

    incarnation: of the present registration, or of the next one while there is none. broker_epoch: of the last
    registration, 0 before the first. dead_incarnations: earlier ones of this data directory, and those declared dead.
    lost: this broker is no longer registered. lease_renewed: it holds its lease again, after it did not. died: another
    incarnation was declared dead.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        new_id: NewId,
        tasks: Tasks,
    ) -> None:
        self.lost: Signal[None] = Signal()
        self.died: Signal[None] = Signal()
        self.lease_renewed: Signal[None] = Signal()
        self.incarnation = str(new_id())
        self.broker_epoch = 0
        self.dead_incarnations: set[str] = set()
        self.is_embedded = store.session_timeout_ms == 0
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._tasks = tasks
        self._own: Registration | None = None
        self._claim: Claim = _claim_nothing
        self._is_registered = False
        self._has_registered = False
        self._lease_until_ms = 0
        self._changed = TimedSignal(clock)
        self._keeping: asyncio.Task[None] | None = None

    async def declare_dead(self, peer: PeerIdentity) -> None:
        """End the registration of another broker's incarnation, whose process is certainly gone.

        Its session would otherwise live on for a timeout. A broker that was declared dead by mistake registers again.
        Raises StorageFailure.
        """
        if peer.incarnation not in self.dead_incarnations:
            await self._store.commit(DeleteNode(f"{BROKERS_PATH}/{peer.node_id}.{peer.incarnation}"))
            self.dead_incarnations.add(peer.incarnation)
            self.died.emit(None)

    def holds_lease(self) -> bool:
        """Return whether no other broker can have taken this one's place yet."""
        return self.is_embedded or self._clock.steady_ms() < self._lease_until_ms

    def may_lead(self, image: ClusterImage) -> bool:
        """True if this broker leads the partitions that this image assigns to it: it shows the present registration."""
        if self.is_embedded:
            return True
        if self._own is None or not self._is_registered:
            return False
        broker = image.brokers.get(self._own.node_id)
        return broker is not None and broker.incarnation == self.incarnation and not broker.is_fenced

    async def start(self, own: Registration, claim: "Claim | None" = None) -> None:
        """Register, and stay registered until `close`. own: without an incarnation and an epoch, which are set here.
        claim: None for a broker without data.

        Raises StartupError if another broker has this id; StorageFailure.
        """
        self._own, self._claim = own, claim or _claim_nothing
        self._store.listen(self._state_changed)
        await until_answered(self._register, self._clock)
        self._keeping = self._tasks.start(self._keep_registered())

    def register_no_more(self) -> None:
        """Leave the present registration as it is: it ends with the session, or by `close`."""
        if self._keeping is not None:
            self._keeping.cancel()

    async def close(self) -> None:
        """Stop, and remove the registration if the store can be reached."""
        self.register_no_more()
        path, self._is_registered, self._lease_until_ms = self._path, False, 0
        if path is not None:
            with contextlib.suppress(StorageFailure):
                await self._store.commit(DeleteNode(path))

    @property
    def _path(self) -> str | None:
        return f"{BROKERS_PATH}/{self._own.node_id}.{self.incarnation}" if self._own and self._is_registered else None

    @property
    def timeout_ms(self) -> int:
        """The timeout that the store grants now; it may grant another one to each session."""
        return self._store.session_timeout_ms

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._lose("the session has ended")
        elif state is SessionState.CONNECTED:
            self._changed.set()

    def _lose(self, reason: str) -> None:
        if not self._is_registered:
            return
        log.warning("broker no longer registered incarnation=%s reason=%s", self.incarnation, reason)
        self._is_registered, self._lease_until_ms = False, 0
        self._begin_incarnation()
        self.lost.emit(None)
        self._changed.set()

    def _begin_incarnation(self) -> None:
        self.dead_incarnations.add(self.incarnation)
        self.incarnation = str(self._new_id())

    async def _keep_registered(self) -> None:
        pauses = Pauses()
        while True:
            if self._is_registered:
                pauses.reset()
                await self._changed.wait(max(1, self.timeout_ms // _HEARTBEATS_PER_TIMEOUT))
                await self._heartbeat()
                continue
            try:
                await self._register()
            except StorageFailure as failure:
                log.log(pauses.log_level, "broker not registered reason=%s", failure)
                await self._changed.wait(pauses.next_ms())

    async def _heartbeat(self) -> None:
        path, sent_ms = self._path, self._clock.steady_ms()
        if path is None:
            return
        try:
            await self._store.sync()
            node = await self._store.get(path)
        except StorageFailure:
            return
        if path != self._path:
            return
        if node is None:
            self._lose("its node is gone")
        else:
            self._renew_lease(sent_ms)

    def _renew_lease(self, sent_ms: int) -> None:
        held_lease = self.holds_lease()
        self._lease_until_ms = sent_ms + self.timeout_ms * 2 // 3
        if not held_lease:
            self.lease_renewed.emit(None)

    async def _register(self) -> None:
        """Raises StartupError, after a wait, if another broker has this id; StorageFailure."""
        began_ms = self._clock.steady_ms()
        while (rival := await self._try_to_register()) is not None:
            left_ms = began_ms + _PATIENCE * self.timeout_ms - self._clock.steady_ms()
            if left_ms <= 0:
                raise StartupError(self._explanation(rival))
            log.info("waiting for the end of the registration of this node id host=%s port=%d", rival.host, rival.port)
            await self._changed.wait(left_ms)

    async def _try_to_register(self) -> Registration | None:
        """Register. Returns the live registration of this id that prevents it, and watches for its end."""
        assert self._own is not None
        while not self._is_registered:
            node = await self._store.get(BROKER_EPOCH_PATH)  # Read before the others: it fences them.
            others = await self._others(self._own)
            for other in others:
                if not self._is_dead(other):
                    if await self._store.get(registration_path(other), self._changed.set) is None:
                        break
                    return other
            else:
                await self._commit(self._own, ABSENT if node is None else node.version, others)
        return None

    def _explanation(self, rival: Registration) -> str:
        assert self._own is not None
        running = f"broker {rival.node_id} at {rival.host}:{rival.port} is running"
        if rival.data_id == self._own.data_id:
            return f"{running}, and this data directory is a copy of its own, or is in use on two machines: stop one"
        return f"{running}, with another data directory: stop it, or choose another --node-id"

    async def _others(self, own: Registration) -> list[Registration]:
        names = [name for name in await self._store.children(BROKERS_PATH) if name.startswith(f"{own.node_id}.")]
        paths = [f"{BROKERS_PATH}/{name}" for name in names]
        nodes = [(path, await self._store.get(path)) for path in paths]
        return [decode_registration(path, node.value) for path, node in nodes if node is not None]

    def _is_dead(self, other: Registration) -> bool:
        """Return whether a registration is of an earlier process with this lock, or an earlier one of this process."""
        assert self._own is not None
        is_own = other.incarnation in self.dead_incarnations
        return is_own or (not self._has_registered and bool(other.lock_id) and other.lock_id == self._own.lock_id)

    async def _commit(self, own: Registration, version: int, dead: list[Registration]) -> None:
        """Write the registration, unless another broker was faster. After a failure the next one has another name."""
        registration = await self._claim(replace(own, incarnation=self.incarnation, broker_epoch=version + 1))
        sent_ms = self._clock.steady_ms()
        try:
            written = await self._store.commit(
                PutNode(BROKER_EPOCH_PATH, b"", version),
                *(DeleteNode(registration_path(other)) for other in dead),
                PutNode(registration_path(registration), msgspec.json.encode(registration), ABSENT, ephemeral=True),
            )
        except StorageFailure:
            self._begin_incarnation()
            raise
        if written is None:
            return
        self.dead_incarnations.update(other.incarnation for other in dead)
        self.broker_epoch = registration.broker_epoch
        self._is_registered = self._has_registered = True
        self._renew_lease(sent_ms)
        log.info("broker registered incarnation=%s broker_epoch=%d", self.incarnation, self.broker_epoch)


async def _claim_nothing(registration: Registration) -> Registration:
    return registration
