"""Sessions with the store of a simulated cluster: when they end, and when their client learns of it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import PutNode, SessionState
from conveyor.testing.memory_store import MemoryTree
from simulation.cluster.cluster_store import ClusterStore
from simulation.cluster.machines import ClusterMachine, Surroundings
from simulation.cluster.observed_tree import ObservedTree
from simulation.cluster.peer_network import PeerSwitch
from simulation.doors.client_network import ClientNetwork
from simulation.story_rules import StoryRules
from simulation.virtual_loop import Process, VirtualLoop

TIMEOUT_MS = 2_000
TIMEOUT_S = TIMEOUT_MS / 1000


class Client:
    """A process with a session and an ephemeral node, and the states that it has seen."""

    def __init__(self, loop: VirtualLoop, tree: MemoryTree) -> None:
        self.loop = loop
        self.process = Process("client")
        self.store = ClusterStore(loop, Random(1), tree, TIMEOUT_MS)
        self.states: list[SessionState] = []
        self.run(self._begin())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.loop.create_task(work, context=self.process.context.copy()))

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def has_node(self) -> bool:
        return "/node" in self.store.shared.nodes

    async def _begin(self) -> None:
        self.store.listen(self.states.append)
        await self.store.commit(PutNode("/node", b"", ephemeral=True))


@pytest.fixture
def client() -> Iterator[Client]:
    loop = VirtualLoop()
    yield Client(loop, MemoryTree())
    loop.end()


def test_a_short_cut_suspends_the_session(client: Client) -> None:
    client.store.lose_contact("cut", is_noticed=True)
    client.wait(TIMEOUT_S * 0.9)
    client.store.regain_contact("cut")
    client.wait(TIMEOUT_S * 2)

    assert client.states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert client.has_node()


def test_a_long_cut_ends_the_session_which_the_client_learns_when_it_is_back(client: Client) -> None:
    client.store.lose_contact("cut", is_noticed=True)
    client.wait(TIMEOUT_S * 1.1)
    assert client.states == [SessionState.SUSPENDED]
    assert not client.has_node()
    client.store.regain_contact("cut")
    client.wait(0.1)

    assert client.states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    client.run(client.store.commit(PutNode("/node", b"", ephemeral=True)))
    client.wait(TIMEOUT_S * 2)
    assert client.has_node()


def test_a_paused_process_learns_of_the_end_of_its_session_when_it_continues(client: Client) -> None:
    client.process.pause()
    client.store.lose_contact("paused")
    client.wait(TIMEOUT_S * 1.1)
    assert not client.has_node()
    client.store.regain_contact("paused")
    client.wait(0.1)
    assert client.states == []
    client.process.resume()
    client.wait(0.1)

    assert client.states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]


def test_a_session_needs_both_a_running_process_and_a_connection(client: Client) -> None:
    client.store.lose_contact("cut", is_noticed=True)
    client.wait(TIMEOUT_S * 0.7)
    client.store.lose_contact("paused")
    client.store.regain_contact("cut")
    client.wait(TIMEOUT_S * 0.7)

    assert not client.has_node()


@pytest.mark.parametrize("is_noticed", [True, False])
def test_calls_without_contact_wait_and_then_fail(client: Client, is_noticed: bool) -> None:
    client.store.lose_contact("cut", is_noticed=is_noticed)
    client.loop.call_later(TIMEOUT_S * 0.9, client.store.regain_contact, "cut")

    with pytest.raises(StorageFailure):
        client.run(client.store.get("/node"))
    client.wait(TIMEOUT_S)
    assert client.run(client.store.get("/node")) is not None


def test_the_session_of_a_dead_process_ends_after_its_timeout(client: Client) -> None:
    client.process.kill()
    client.store.abandon()
    client.wait(TIMEOUT_S * 0.9)
    assert client.has_node()
    client.wait(TIMEOUT_S * 0.2)

    assert not client.has_node()
    assert client.states == []


def test_a_watch_is_called_in_the_process_that_has_set_it(client: Client) -> None:
    called: list[str] = []

    async def watch(changed: Callable[[], None]) -> None:
        await client.store.get("/other", changed)

    client.run(watch(lambda: called.append("watch")))
    client.process.pause()
    other = Client(client.loop, client.store.shared)
    other.run(other.store.commit(PutNode("/other", b"")))
    client.wait(0.1)
    assert called == []
    client.process.resume()
    client.wait(0.1)

    assert called == ["watch"]


def test_no_reply_overtakes_a_watch_that_was_due_before_it(client: Client) -> None:
    """ZooKeeper promises it: whoever sees the new data has seen the event."""
    client.store._longest_watch_s = 1.0
    seen: list[str] = []

    async def watch() -> None:
        await client.store.get("/other", lambda: seen.append("event"))
        client.store.shared.commit(client.store, (PutNode("/other", b""),))
        await client.store.get("/other")
        seen.append("data")

    client.run(watch())

    assert seen == ["event", "data"]


def test_the_session_of_a_process_that_is_killed_ends_after_its_timeout() -> None:
    loop, tree = VirtualLoop(), ObservedTree()
    shared = Surroundings(
        loop=loop,
        seed=1,
        rules=StoryRules(),
        tree=tree,
        switch=PeerSwitch(loop, Random(1)),
        clients=ClientNetwork(loop, Random(1)),
    )
    machine = ClusterMachine(NodeId(1), shared, lambda: None)
    process = Process("broker")
    process.context.run(machine.enter)
    commit = machine.store.commit(PutNode("/node", b"", ephemeral=True))
    loop.run_until_complete(loop.create_task(commit, context=process.context.copy()))
    machine.leave(has_power=False)
    process.kill()
    loop.run_until_complete(asyncio.sleep(TIMEOUT_S * 0.9))
    assert "/node" in tree.nodes
    loop.run_until_complete(asyncio.sleep(TIMEOUT_S * 0.2))

    assert "/node" not in tree.nodes
    loop.end()
