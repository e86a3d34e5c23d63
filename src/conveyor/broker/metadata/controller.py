"""The controller: the one broker that acts by itself. It fences and registers brokers, elects and balances leaders.

    /controller-epoch       content: the epoch; rises with each election
    /controllers/<epoch>    ephemeral `Candidate`: the controller of this epoch

    no node for the current epoch -> commit of the next epoch and its node -> elected -> sync, catch up
    -> registrations observed -> decisions until nothing changes -> wait for a change of the registrations

Every broker is a candidate. The controller reads all registrations after it was elected; they decide, not those that it
has seen before. Its commits require that its epoch is current, so a controller that was paused and replaced writes
nothing. It stops acting when the session of the store ends, its node is gone, or a commit shows a newer epoch, and then
stands again.

A registration that cannot be read, such as that of a later version, is reported once and ignored: its broker is never
registered, and all others are.

A candidate deletes the node of a controller that it knows to be dead; see `BrokerSession.dead_incarnations`.
"""

import asyncio
import logging

import msgspec

from conveyor.broker.metadata.broker_session import BROKERS_PATH, decode_registration
from conveyor.broker.metadata.metadata import ControllerTerm, Decide, Elected
from conveyor.broker.services import Services
from conveyor.broker.timed_signal import Pauses, TimedSignal
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.elections import balanced_leaders
from conveyor.cluster.controller.registrations import Registration, observed_brokers
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.metadata_log import CONTROLLER_EPOCH_PATH, controller_path, decode_controller_epoch
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import NodeId, is_gateway
from conveyor.kernel.ports import ABSENT, DeleteNode, MetadataStore, PutNode, SessionState, StoreOperation

log = logging.getLogger(__name__)

BALANCE_INTERVAL_MS = 300_000


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a controller's node."""

    node_id: int
    incarnation: str


class Controller:
    def __init__(self, services: Services, store: MetadataStore) -> None:
        self._services = services
        self._metadata = services.metadata
        self._store = store
        self._node_id = services.me
        self._clock = services.clock
        self._changed = TimedSignal(services.clock)
        self._has_lost_session = False
        self._attempt = ("", b"")
        """The path and the content of the node of the last attempt to be elected."""
        self._registrations: dict[str, Registration | None] = {}
        """By the names of their nodes; None: it cannot be read."""
        self._is_observed = False
        """Set while the registrations are those in the store."""
        self._is_node_watched = False
        self._balanced_ms = 0
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Stand for controller until `stop`."""
        self._store.listen(self._session_changed)
        self._metadata.session.died.listen(lambda _: self._changed.set())
        self._running = self._metadata.tasks.start(self._run())

    def stop(self) -> None:
        """Act no more. The end of the store's session removes the node."""
        if self._running is not None:
            self._running.cancel()

    def _session_changed(self, state: SessionState) -> None:
        self._has_lost_session |= state is SessionState.LOST
        self._changed.set()

    async def _run(self) -> None:
        pauses = Pauses()
        while True:
            try:
                term = self._metadata.term
                if term is None:
                    await self._stand()
                else:
                    await self._act(term)
                pauses.reset()
            except (RequestError, StorageFailure) as failure:
                if isinstance(failure, RequestError) and failure.kind is ErrorKind.NOT_CONTROLLER:
                    self._end_term(failure.message)
                log.log(pauses.log_level, "controller waits reason=%s", failure)
                await self._changed.wait(pauses.next_ms())
            if self._has_lost_session:
                self._end_term("the session has ended")

    async def _stand(self) -> None:
        """Become the controller, or wait until the present one is gone. Raises StorageFailure."""
        self._has_lost_session = False
        node = await self._store.get(CONTROLLER_EPOCH_PATH)
        epoch, version = (0, ABSENT) if node is None else (decode_controller_epoch(node.value), node.version)
        path = controller_path(epoch)
        holder = await self._store.get(path, self._changed.set) if epoch else None
        removed: list[StoreOperation] = []
        if holder is not None:
            if self._attempt == (path, holder.value):  # Elected, and the reply was lost.
                return self._begin_term(ControllerTerm(epoch, version))
            candidate = _decoded(path, holder.value)
            self._metadata.elected = Elected(NodeId(candidate.node_id), epoch)
            if candidate.incarnation not in self._metadata.session.dead_incarnations:
                return await self._changed.wait()
            removed.append(DeleteNode(path, holder.version))
        own = Candidate(node_id=self._node_id, incarnation=self._metadata.session.incarnation)
        self._attempt = controller_path(epoch + 1), msgspec.json.encode(own)
        versions = await self._store.commit(
            PutNode(CONTROLLER_EPOCH_PATH, str(epoch + 1).encode(), version),
            *removed,
            PutNode(*self._attempt, ABSENT, ephemeral=True),
        )
        if versions is not None:
            self._begin_term(ControllerTerm(epoch + 1, versions[0]))

    def _begin_term(self, term: ControllerTerm) -> None:
        log.info("controller elected node=%d epoch=%d", self._node_id, term.epoch)
        self._metadata.term, self._metadata.elected = term, Elected(self._node_id, term.epoch)
        self._registrations, self._is_observed, self._is_node_watched = {}, False, False
        self._balanced_ms = self._clock.steady_ms()

    def _end_term(self, reason: str) -> None:
        if self._metadata.term is not None:
            log.warning("controller resigns epoch=%d reason=%s", self._metadata.term.epoch, reason)
            self._metadata.term = None

    async def _act(self, term: ControllerTerm) -> None:
        """Make the decisions that are due, then wait for the next change. Raises RequestError, StorageFailure."""
        if not await self._holds(term):
            return self._end_term("its node is gone")
        if not self._is_observed:
            await self._observe()
        registrations = [item for item in self._registrations.values() if item is not None]
        await self._decide(lambda image: observed_brokers(image, registrations, self._services.settings), term)
        if not self._is_observed or self._has_lost_session:
            return None
        left_ms = self._balanced_ms + BALANCE_INTERVAL_MS - self._clock.steady_ms()
        if left_ms <= 0:
            self._balanced_ms = self._clock.steady_ms()
            await self._metadata.propose(lambda image: balanced_leaders(image, self._services.settings), term)
            left_ms = BALANCE_INTERVAL_MS
        await self._changed.wait(left_ms)

    async def _holds(self, term: ControllerTerm) -> bool:
        """Return whether the own node exists; it is watched from then on."""
        if self._is_node_watched:
            return True
        self._is_node_watched = True
        try:
            return await self._store.get(controller_path(term.epoch), self._node_changed) is not None
        except StorageFailure:
            self._is_node_watched = False
            raise

    async def _observe(self) -> None:
        """Read the registrations, and watch their names. A registration never changes."""
        await self._metadata.catch_up()
        self._is_observed = True
        try:
            found: dict[str, Registration | None] = {}
            for name in await self._store.children(BROKERS_PATH, self._names_changed):
                path = f"{BROKERS_PATH}/{name}"
                if name in self._registrations:
                    found[name] = self._registrations[name]
                elif (node := await self._store.get(path)) is not None:
                    found[name] = _registration(path, node.value)
        except StorageFailure:
            self._is_observed = False
            raise
        self._log_gateways(found)
        self._registrations = found

    def _log_gateways(self, found: dict[str, Registration | None]) -> None:
        """Nothing else happens when a gateway comes or goes."""
        for name, item in (found | self._registrations).items():
            if item is not None and is_gateway(item.node_id) and (name in found) != (name in self._registrations):
                state = "joined" if name in found else "gone"
                log.info("gateway %s node=%d http_url=%s", state, item.node_id, item.http_url)

    def _names_changed(self) -> None:
        self._is_observed = False
        self._changed.set()

    def _node_changed(self) -> None:
        self._is_node_watched = False
        self._changed.set()

    async def _decide(self, decide: Decide, term: ControllerTerm) -> None:
        """Propose until a decision changes nothing: one decision may leave a part to the next."""
        is_done = False

        def noted(image: ClusterImage) -> list[Change]:
            nonlocal is_done
            changes = [*decide(image)]
            is_done = not changes
            return changes

        while not is_done and not self._has_lost_session:
            await self._metadata.propose(noted, term)


def _registration(path: str, content: bytes) -> Registration | None:
    try:
        return decode_registration(path, content)
    except StorageFailure as failure:
        log.error("broker not registered: %s", failure)
        return None


def _decoded(path: str, content: bytes) -> Candidate:
    try:
        return msgspec.json.decode(content, type=Candidate)
    except msgspec.MsgspecError as error:
        raise StorageFailure(f"metadata store: node {path} is damaged, or a later version wrote it: {error}") from error
