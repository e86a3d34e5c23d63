"""Members of a cluster in one event loop: each has the metadata, the session and the controller of a broker."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from uuid import uuid4

import msgspec

from conveyor.broker.metadata.controller import Controller
from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.controller.registrations import Registration
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import SessionState, StoreOperation
from conveyor.testing.manual_clock import ManualClock
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from tests.unit.broker.parts import NOW_MS, ThreadlessExecutor
from tests.unit.broker.room_services import room_services

TIMEOUT_MS = 2_000
_MOST_TURNS = 10_000


class HeldStore(MemoryStore):
    """A session whose commits can be held, and whose next reply can be lost."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(TIMEOUT_MS, tree)
        self.loses_reply: Callable[[StoreOperation], bool] = lambda _: False
        """Whether a commit with this operation fails after it has taken effect."""
        self._may_commit = asyncio.Event()
        self._may_commit.set()

    def hold_commits(self) -> None:
        """Let commits wait before they take effect."""
        self._may_commit.clear()

    def release_commits(self) -> None:
        self._may_commit.set()

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        await self._may_commit.wait()
        committed = await super().commit(*operations)
        if any(map(self.loses_reply, operations)):
            raise StorageFailure("the reply is lost")
        return committed


class Member:
    """One broker without partitions. clock: moves only when the test advances it. failures: what would stop it.

    claimed: the incarnations that its data directory knows.
    """

    def __init__(
        self, store: HeldStore, node_id: int, claimed: list[str], data_id: str = "", lock_id: str = ""
    ) -> None:
        self.node_id = NodeId(node_id)
        self.store = store
        self.claimed = claimed
        self.clock = ManualClock(NOW_MS)
        self.failures: list[BaseException] = []
        self.metadata = Metadata(store, ThreadlessExecutor(), uuid4, self.clock, self.failures.append)
        self.session = self.metadata.session
        self.controller = Controller(room_services(self.clock, metadata=self.metadata, me=self.node_id), store)
        self.broker = BrokerImage(node_id=self.node_id, host=f"b{node_id}.example", port=9092)
        self.registration = Registration(
            node_id=self.node_id,
            host=self.broker.host,
            port=self.broker.port,
            incarnation="",
            broker_epoch=0,
            boot_id="boot",
            data_id=data_id or f"data of {node_id}",
            lock_id=lock_id or f"lock on the {data_id or f'data of {node_id}'}",
        )

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    @property
    def is_registered(self) -> bool:
        """Whether the image shows the present registration."""
        return self.session.may_lead(self.image)

    async def start(self) -> "Member":
        await self.metadata.load(self.broker)
        await self.session.start(self.registration, self.claim)
        self.controller.start()
        return self

    async def claim(self, registration: Registration) -> Registration:
        self.claimed.append(registration.incarnation)
        return msgspec.structs.replace(registration, past_incarnations=tuple(self.claimed))

    async def stop(self) -> None:
        self.controller.stop()
        await self.session.close()
        await self.metadata.close()

    async def advance_until(self, condition: Callable[[], bool], step_ms: int = 100) -> None:
        """Let this member's clock run until a condition holds."""
        for _ in range(_MOST_TURNS):
            if condition():
                return
            self.clock.advance(seconds=step_ms / 1000)
            await quiet()
        raise AssertionError("the condition never holds")

    async def kill(self) -> None:
        """End the process. Its session lives on until it expires."""
        await self.metadata.tasks.stop()
        self.store.abandon()
        await quiet()


class Cluster:
    """Members of one tree. All are stopped at the end."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.members: list[Member] = []
        self._claimed: defaultdict[tuple[int, str], list[str]] = defaultdict(list)

    async def add(self, node_id: int, *, data_id: str = "") -> Member:
        """Start a broker."""
        member = self.make(node_id, data_id=data_id)
        await member.start()
        await until(lambda: member.is_registered)
        return member

    def make(self, node_id: int, *, data_id: str = "", lock_id: str = "") -> Member:
        """Return a broker to start. With the same data_id it has the same directory, or a copy with another lock."""
        member = Member(HeldStore(self.tree), node_id, self._claimed[node_id, data_id], data_id, lock_id)
        self.members.append(member)
        return member

    async def kill(self, member: Member) -> None:
        self.members.remove(member)
        await member.kill()

    async def stop(self) -> None:
        for member in self.members:
            if member.store.session_state is not SessionState.CONNECTED:
                member.store.reconnect()
            await member.stop()
        assert not [failure for member in self.members for failure in member.failures]


async def quiet() -> None:
    """Let all tasks run until each of them waits for time or for another task that does."""
    for _ in range(100):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let tasks run until a condition holds."""
    for _ in range(_MOST_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never holds")
