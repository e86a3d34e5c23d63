"""Keeps a second broker away from a metadata store that several processes can reach, because one broker serves it.

    /active-broker    ephemeral {"node_id": 1, "host": "127.0.0.1", "port": 9092, "incarnation": "<uuid>"}

A broker that was killed leaves its node until its session ends. The next one waits for that. After a lost session the
broker writes its node again; if another broker has written one meanwhile, this broker stops.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from uuid import UUID

import msgspec

from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import BrokerImage
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ports import ABSENT, MetadataStore, PutNode, SessionState

log = logging.getLogger(__name__)

ACTIVE_BROKER_PATH = "/active-broker"
_PATIENCE = 3
"""How many session timeouts a broker waits for the end of another one's session."""


class ActiveBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the node. incarnation: differs with each start."""

    node_id: int
    host: str
    port: int
    incarnation: UUID


class SoleBroker:
    """See the module's docstring. displaced: called with the failure that must stop this broker."""

    def __init__(
        self,
        store: MetadataStore,
        tasks: Tasks,
        new_id: Callable[[], UUID],
        displaced: Callable[[StorageFailure], None],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._incarnation = new_id()
        self._displaced = displaced

    async def claim(self, broker: BrokerImage) -> None:
        """Become the broker of this store; does nothing for an embedded one. Raises StartupError, StorageFailure."""
        if not self._store.session_timeout_ms:
            return
        own = ActiveBroker(node_id=broker.node_id, host=broker.host, port=broker.port, incarnation=self._incarnation)
        gone = asyncio.Event()
        holder = await self._take(own, gone.set)
        if holder is not None:
            log.info("waiting for the end of another broker's session node=%d", holder.node_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE * self._store.session_timeout_ms / 1000):
                while holder is not None:
                    await gone.wait()
                    gone.clear()
                    holder = await self._take(own, gone.set)
        if holder is not None:
            raise StartupError(
                f"broker {holder.node_id} at {holder.host}:{holder.port} uses this metadata store, which serves one"
                " broker: stop it, or choose another path in --metadata"
            )
        self._store.listen(lambda state: self._session_changed(state, own))

    async def _take(self, own: ActiveBroker, changed: Callable[[], None] | None = None) -> ActiveBroker | None:
        """Write the node, unless it exists. Returns the broker that has written it, if it is another one."""
        while True:
            node = await self._store.get(ACTIVE_BROKER_PATH, changed)
            if node is not None:
                holder = _decoded(node.value)
                return None if holder == own else holder
            put = PutNode(ACTIVE_BROKER_PATH, msgspec.json.encode(own), ABSENT, ephemeral=True)
            if await self._store.commit(put) is not None:
                return None

    def _session_changed(self, state: SessionState, own: ActiveBroker) -> None:
        if state is SessionState.CONNECTED:
            self._tasks.start(self._take_again(own))

    async def _take_again(self, own: ActiveBroker) -> None:
        try:
            holder = await self._take(own)
        except StorageFailure as failure:  # The next connection tries again.
            log.warning("broker not registered in the metadata reason=%s", failure)
            return
        if holder is not None:
            where = f"{holder.host}:{holder.port}"
            self._displaced(
                StorageFailure(
                    f"metadata store: the session of this broker had ended, and broker {holder.node_id} at {where} has"
                    " taken its place"
                )
            )


def _decoded(content: bytes) -> ActiveBroker:
    try:
        return msgspec.json.decode(content, type=ActiveBroker)
    except msgspec.MsgspecError as error:
        raise StorageFailure(f"metadata store: node {ACTIVE_BROKER_PATH} is damaged: {error}") from error
