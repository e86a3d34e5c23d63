"""Links between brokers over TCP: honest peers and dead peers."""

import asyncio
import contextlib
import socket

import pytest

from conveyor.adapters.peers.handshake import NONCE_BYTES, DialerHandshake
from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.adapters.peers.peer_framing import LENGTH
from conveyor.adapters.peers.tcp_peer_network import TcpPeerNetwork
from conveyor.adapters.tls.tls_channel import TlsChannel
from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    MAX_FRAME_BYTES,
    PeerAddress,
    PeerCredentials,
    PeerIdentity,
    PeerLink,
    PeerService,
    PeerUnreachable,
)
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.testing.memory_disk import MemoryDisk, MemoryFile
from tests.unit.adapters.peers.nodes import FRAME_BYTES, SECRET, Node, Recorder, connect, linked, running


async def test_frames_arrive_in_both_directions_and_in_order(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    sent = [b"%d" % number * (1 + number * 37 % 9_000) for number in range(300)]

    for frame in sent:
        dialled.link.send(frame[:1], memoryview(frame)[1:])
        accepted.link.send(frame)

    assert [await accepted.frames.get() for _ in sent] == sent
    assert [await dialled.frames.get() for _ in sent] == sent
    assert (dialled.link.peer, accepted.link.peer) == (two.identity, one.identity)
    assert dialled.link.unsent_bytes == 0


async def test_a_closed_link_ends_at_both_ends(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)

    dialled.link.close("enough")

    assert dialled.end.result() == "enough"
    assert await accepted.end
    accepted.link.send(b"late")
    accepted.link.close("again")


async def test_a_violation_of_the_protocol_ends_the_link(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)

    dialled.link.send(Recorder.violation)

    assert "what is that" in await accepted.end
    await dialled.end


async def test_a_link_for_an_unknown_purpose_is_refused(one: Node, two: Node) -> None:
    def refuse(link: PeerLink, service: PeerService) -> Recorder:
        raise ProtocolViolation("no such service")

    two.network.accept(refuse)

    assert await (await one.dial(two.address)).end


async def test_a_process_that_does_not_listen_is_gone(one: Node, two: Node) -> None:
    two.network.stop()
    await asyncio.sleep(0.01)

    with pytest.raises(PeerUnreachable) as unreachable:
        await one.dial(two.address)

    assert unreachable.value.is_gone


async def test_a_dial_of_another_start_is_refused(one: Node, two: Node) -> None:
    earlier = PeerAddress(PeerIdentity(NodeId(2), "earlier"), two.network.host, two.network.port)

    with pytest.raises(PeerUnreachable, match="start start-2 of broker 2") as unreachable:
        await one.dial(earlier)

    assert not unreachable.value.is_gone


async def test_a_broker_with_another_secret_is_refused(two: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with running(1, secret=bytes(32)) as stranger:
        with pytest.raises(PeerUnreachable, match="does not know the secret"):
            await stranger.dial(two.address)
        await asyncio.sleep(0.01)

    assert two.accepted.empty()
    assert "peer refused address=127.0.0.1:" in caplog.text


async def test_a_broker_that_has_not_joined_refuses_links(one: Node) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    network = TcpPeerNetwork("127.0.0.1", bound.getsockname()[1], link_certificate)
    await network.start(bound)
    address = PeerAddress(PeerIdentity(NodeId(2), "start"), network.host, network.port)

    with pytest.raises(PeerUnreachable, match="not joined"):
        await one.dial(address)
    with pytest.raises(PeerUnreachable):
        await network.dial(one.address, PeerService.CALLS, Recorder)

    network.stop()


async def test_a_cancelled_dial_leaves_no_link(one: Node, two: Node) -> None:
    dial = asyncio.ensure_future(one.dial(two.address))
    await asyncio.sleep(0)
    dial.cancel()

    with pytest.raises(asyncio.CancelledError):
        await dial
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await (await two.accepted.get()).end


@pytest.mark.usefixtures("impatience")
async def test_an_idle_link_lives_on_keep_alives(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)

    await asyncio.wait([dialled.end, accepted.end], timeout=0.6)

    assert not dialled.end.done()
    assert not accepted.end.done()


@pytest.mark.usefixtures("impatience")
async def test_a_peer_whose_loop_hangs_is_dead(one: Node, two: Node) -> None:
    """The loop of both brokers is this one, so the peer hangs in that it sends no keep-alives."""
    dialled, _ = await linked(one, two)
    check = two.network._check
    assert check is not None
    check.cancel()

    assert "silent" in await dialled.end


@pytest.mark.usefixtures("impatience")
async def test_a_dial_that_is_not_answered_gives_up(one: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PeerAddress(PeerIdentity(NodeId(3), "start"), "127.0.0.1", silent.getsockname()[1])
        with pytest.raises(PeerUnreachable, match="does not answer"):
            await one.dial(address)


async def test_large_frame_is_encrypted_in_parts(one: Node, two: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled, accepted = await linked(one, two)
    sizes: list[int] = []
    send = TlsChannel.send

    def count(channel: TlsChannel, plain: Bytes) -> None:
        sizes.append(len(plain))
        send(channel, plain)

    monkeypatch.setattr(TlsChannel, "send", count)
    frame = bytes(range(256)) * (FRAME_BYTES // 256)
    dialled.link.send(b"", frame)
    assert await accepted.frames.get() == frame
    assert max(sizes) <= 1 << 18


async def test_half_a_frame_is_never_received(one: Node, two: Node) -> None:
    reader, writer = await connect(two)
    own = PeerCredentials("cluster", SECRET, lambda: PeerIdentity(NodeId(9), "start-9"))
    shake = DialerHandshake(own, two.identity, PeerService.CALLS, bytes(NONCE_BYTES))
    shake.certificate = link_certificate().der
    writer.write(shake.begin())
    while not shake.is_done:
        writer.write(shake.receive(await reader.read(4_096)))
    writer.write(LENGTH.pack(3) + b"all" + LENGTH.pack(10) + b"half")
    accepted = await two.accepted.get()
    assert await accepted.frames.get() == b"all"
    writer.close()

    await accepted.end
    assert accepted.frames.empty()


async def test_a_frame_beyond_the_limit_ends_the_link(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    accepted.link._frames._max_bytes = 10  # type: ignore[attr-defined]

    dialled.link.send(bytes(11))

    assert "a frame of 11 bytes" in await accepted.end


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1])
async def test_a_frame_that_no_peer_takes_ends_its_link_and_is_logged(
    one: Node, two: Node, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    dialled, accepted = await linked(one, two)

    dialled.link.send(b"", FileSlice(MemoryFile("log", MemoryDisk()), 0, length))

    assert await dialled.end == f"a frame of {length} bytes"
    await accepted.end
    assert caplog.text.count(f"frame refused peer=2 bytes={length}") == 1


async def test_slices_that_wait_on_the_disk_do_not_end_a_link(one: Node, two: Node) -> None:
    """As a record batch that is larger than what may wait in memory, and the offsets that are sent after it."""
    one.network.max_unsent_bytes = FRAME_BYTES
    dialled, accepted = await linked(one, two)
    accepted.link._transport.pause_reading()  # type: ignore[attr-defined]
    file = MemoryFile("log", MemoryDisk())
    file.append([bytes(32 * FRAME_BYTES)])

    dialled.link.send(b"batch", FileSlice(file, 0, 32 * FRAME_BYTES))
    dialled.link.send(b"offsets")
    assert dialled.link.unsent_bytes > 16 * FRAME_BYTES
    accepted.link._transport.resume_reading()  # type: ignore[attr-defined]

    assert len(await accepted.frames.get()) == 5 + 32 * FRAME_BYTES
    assert await accepted.frames.get() == b"offsets"
    assert not dialled.end.done()


async def test_frames_that_are_sent_do_not_count_as_waiting(one: Node, two: Node) -> None:
    one.network.max_unsent_bytes = 2 * FRAME_BYTES
    dialled, accepted = await linked(one, two)

    for _ in range(10):
        dialled.link.send(bytes(FRAME_BYTES))
        await accepted.frames.get()

    assert not dialled.end.done()


async def test_a_peer_that_does_not_read_is_ended(one: Node, two: Node) -> None:
    one.network.max_unsent_bytes = 2 * FRAME_BYTES
    dialled, accepted = await linked(one, two)
    accepted.link._transport.pause_reading()  # type: ignore[attr-defined]

    while not dialled.end.done():
        dialled.link.send(bytes(FRAME_BYTES))
        await asyncio.sleep(0)

    assert "does not read" in dialled.end.result()


class ColdFile(MemoryFile):
    """A file with nothing in the page cache."""

    def read_cached(self, position: int, length: int) -> bytes:
        return b""


async def test_slices_are_sent_in_order_from_the_cache_and_from_the_disk(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    disk = MemoryDisk()
    cold, cached = ColdFile("cold", disk), disk.open("cached", create=True)
    cold.append([bytes(range(256)) * 3_000])
    cached.append([b"0123456789"])

    dialled.link.send(b"<", FileSlice(cold, 10, 700_000), b">")
    dialled.link.send(FileSlice(cached, 2, 3), b"!")

    assert await accepted.frames.get() == b"<" + bytes(cold.written[10:700_010]) + b">"
    assert await accepted.frames.get() == b"234!"
    assert dialled.link.unsent_bytes == 0


@pytest.mark.parametrize("kind", [ColdFile, MemoryFile])
async def test_a_slice_that_cannot_be_read_ends_the_link(one: Node, two: Node, kind: type[MemoryFile]) -> None:
    dialled, accepted = await linked(one, two)
    disk = MemoryDisk()
    file = kind("log", disk)
    file.append([b"0123456789"])
    disk.faults.fail("read")
    failures: list[StorageFailure] = []

    dialled.link.send(b"header", FileSlice(file, 0, 10, failures.append))

    assert await dialled.end == "stored records could not be read"
    await accepted.end
    assert (len(failures), accepted.frames.empty()) == (1, True)
