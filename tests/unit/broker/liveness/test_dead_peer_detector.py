"""Whether a broker that cannot be dialled is declared dead, on a simulated network."""

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.liveness.dead_peer_detector import DeadPeerDetector
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerAddress, PeerCredentials, PeerIdentity, PeerService, PeerUnreachable
from conveyor.kernel.ports import Bytes
from conveyor.testing import ManualClock
from simulation.cluster.peer_network import PeerSwitch
from simulation.virtual_loop import Process, VirtualLoop
from tests.unit.broker.room_services import Session, room_services


class Silent:
    """An end that ignores everything."""

    def received(self, frame: Bytes) -> None: ...

    def ended(self, reason: str) -> None: ...


def silent(*_: object) -> Silent:
    return Silent()


class Brokers:
    """Two brokers; the first one notes whom it declares dead."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.switch = PeerSwitch(self.loop, Random(1))
        self.declared: list[PeerIdentity] = []
        self.failures: list[BaseException] = []
        self.process, network = self._join(PeerIdentity(NodeId(1), "one"))
        session = SimpleNamespace(declare_dead=self._declare)
        services = room_services(ManualClock(), Tasks(self.failures.append), session=cast("Session", session))
        self.links = ClusterLinks(services, network)
        DeadPeerDetector(services, self.links)
        self.other = PeerIdentity(NodeId(2), "two")
        self.other_process, self.other_network = self._join(self.other)
        self.store_fails = False

    def dial(self, identity: PeerIdentity | None = None) -> bool:
        """Dial the second broker. Returns whether it was reached."""
        address = PeerAddress(identity or self.other, self.other_network.host, self.other_network.port)
        work = self.links.dial(address, PeerService.CALLS, silent)
        task = self.loop.create_task(work, context=self.process.context.copy())
        try:
            self.loop.run_until_complete(task)
        except PeerUnreachable:
            return False
        finally:
            self.loop.call_later(1, self.loop.stop)
            self.loop.run_forever()
        return True

    def kill(self) -> None:
        self.other_process.kill()
        self.other_network.leave()

    def _join(self, identity: PeerIdentity) -> tuple[Process, Any]:
        process = Process(f"broker {identity.node_id}")
        network = process.context.run(self.switch.join, identity.node_id)
        network.open(PeerCredentials("cluster", b"s" * 32, lambda: identity))
        network.accept(silent)
        return process, network

    async def _declare(self, identity: PeerIdentity) -> None:
        if self.store_fails:
            raise StorageFailure("the store is away")
        self.declared.append(identity)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    made.loop.end()
    assert not made.failures


def test_killed_broker_is_declared_dead_after_two_refusals(brokers: Brokers) -> None:
    assert brokers.dial()
    brokers.kill()
    assert (brokers.dial(), brokers.declared) == (False, [])
    assert (brokers.dial(), brokers.declared) == (False, [brokers.other])
    assert (brokers.dial(), brokers.declared) == (False, [brokers.other])


def test_broker_that_was_never_reached_is_not_declared_dead(brokers: Brokers) -> None:
    """Also if an earlier start of it was."""
    assert brokers.dial()
    brokers.kill()
    for _ in range(3):
        assert not brokers.dial(PeerIdentity(NodeId(2), "next"))
    assert brokers.declared == []


def test_failed_commit_is_left_to_the_end_of_the_session(brokers: Brokers) -> None:
    assert brokers.dial()
    brokers.kill()
    brokers.store_fails = True
    for _ in range(3):
        assert not brokers.dial()
    assert brokers.declared == []


@pytest.mark.parametrize("has_power", [True, False])
def test_broker_that_does_not_answer_is_not_declared_dead(brokers: Brokers, has_power: bool) -> None:
    assert brokers.dial()
    if has_power:
        brokers.switch.cut(NodeId(1), NodeId(2))
    else:
        brokers.switch.lose_power(NodeId(2))
        brokers.kill()
    for _ in range(3):
        assert not brokers.dial()
    assert brokers.declared == []
