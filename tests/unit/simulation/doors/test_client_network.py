"""The simulated network between clients and brokers: bytes in order, and what the ends hear when something fails."""

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from simulation.doors.client_network import ClientNetwork, Disconnected, MemoryTransport
from simulation.virtual_loop import Process, VirtualLoop

HOST, PORT = "broker-1.example", 9_092


class End(asyncio.Protocol):
    """An end that stores what it receives."""

    def __init__(self, *, keeps_open: bool = False) -> None:
        self.received = b""
        self.events: list[str] = []
        self._keeps_open = keeps_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self._keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("closed" if exc is None else "reset")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Net:
    """A network with one broker, whose process listens."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = ClientNetwork(self.loop, Random(3))
        self.accepted: list[End] = []
        self.keeps_open = False
        self.start()

    def start(self) -> None:
        self.process = Process("broker")
        self.process.context.run(lambda: self.network.bind(HOST, PORT).listen(self._accept))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def wait(self, seconds: float = 0.1) -> None:
        self.run(asyncio.sleep(seconds))

    def connect(self, *, keeps_open: bool = False) -> tuple[End, End]:
        """Return both ends: the client's first."""
        near = self.run(self.network.connect(lambda: End(keeps_open=keeps_open), HOST, PORT))
        self.wait()
        return near, self.accepted[-1]

    def die(self, *, has_power: bool) -> None:
        self.network.leave(HOST, has_power=has_power)
        self.process.kill()

    def _accept(self) -> End:
        self.accepted.append(End(keeps_open=self.keeps_open))
        return self.accepted[-1]


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    yield net
    net.loop.end()


def test_bytes_arrive_in_order_in_both_directions(net: Net) -> None:
    near, far = net.connect()
    for number in range(100):
        near.transport.write(b"%d," % number)
        far.transport.write(b"%d;" % number)
    net.wait()
    assert far.received == b"".join(b"%d," % number for number in range(100))
    assert near.received == b"".join(b"%d;" % number for number in range(100))


def test_a_write_may_arrive_in_pieces(net: Net) -> None:
    near, far = net.connect()
    sizes = set()
    for _ in range(200):
        before = len(far.received)
        near.transport.write(b"x" * 100)
        net.wait(0.003)
        sizes.add(len(far.received) - before)
    assert any(size % 100 for size in sizes)


def test_a_closed_end_is_heard_after_its_bytes(net: Net) -> None:
    near, far = net.connect()
    far.transport.write(b"last words")
    far.transport.close()
    net.wait()
    assert near.received == b"last words"
    assert near.events == ["eof", "closed"]
    assert far.events == ["closed"]


def test_a_half_closed_end_still_reads(net: Net) -> None:
    net.keeps_open = True
    near, far = net.connect()
    near.transport.write_eof()
    net.wait()
    far.transport.write(b"answer")
    net.wait()
    assert far.events == ["eof"]
    assert near.received == b"answer"


def test_an_aborted_connection_is_reset(net: Net) -> None:
    near, far = net.connect()
    near.transport.abort()
    net.wait()
    assert far.events == ["reset"]
    far.transport.write(b"too late")
    net.wait()
    assert near.received == b""


def test_a_killed_process_ends_its_connections(net: Net) -> None:
    near, far = net.connect()
    net.die(has_power=True)
    net.wait()
    assert near.events[-1] in ("reset", "closed")
    assert far.events == [], "a dead process does nothing more"
    with pytest.raises(Disconnected, match="refuses"):
        net.connect()


def test_a_machine_without_power_is_silent_until_it_is_back(net: Net) -> None:
    near, _ = net.connect()
    net.die(has_power=False)
    near.transport.write(b"anybody there?")
    net.wait(30)
    assert near.events == []
    with pytest.raises(Disconnected, match="does not answer"):
        net.connect()
    net.start()
    net.wait()
    assert near.events == ["reset"]


def test_a_paused_process_reads_later(net: Net) -> None:
    near, far = net.connect()
    net.process.pause()
    near.transport.write(b"hello")
    net.wait()
    assert far.received == b""
    net.process.resume()
    net.wait()
    assert far.received == b"hello"


def test_a_reader_that_is_behind_holds_its_sender_back(net: Net) -> None:
    near, far = net.connect()
    far.transport.pause_reading()
    near.transport.write(b"x" * 100_000)
    net.wait()
    assert near.events == ["pause"]
    assert far.received == b""
    far.transport.resume_reading()
    net.wait()
    assert near.events == ["pause", "resume"]
    assert len(far.received) == 100_000
