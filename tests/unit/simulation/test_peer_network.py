"""The simulated network between brokers: ordered frames, and what becomes of links when something fails."""

from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    PEER_SILENCE_LIMIT_S,
    PeerAddress,
    PeerCredentials,
    PeerIdentity,
    PeerLink,
    PeerService,
    PeerUnreachable,
)
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.peer_network import PeerSwitch
from simulation.virtual_loop import Process, VirtualLoop

SECRET = b"s" * 32


class Recorder:
    """An end that stores what it receives."""

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.frames: list[bytes] = []
        self.reasons: list[str] = []
        self.violation = ""

    def received(self, frame: Bytes) -> None:
        assert not self.reasons, "a frame after the end"
        self.frames.append(bytes(frame))
        if self.violation:
            raise ProtocolViolation(self.violation)

    def ended(self, reason: str) -> None:
        self.reasons.append(reason)


class Node:
    """A start of a broker with its network, and the links that others have opened to it."""

    def __init__(self, cluster: "Cluster", node_id: int, secret: bytes = SECRET) -> None:
        cluster.starts += 1
        self.identity = PeerIdentity(NodeId(node_id), f"start-{cluster.starts}")
        self.process = Process(f"broker {node_id}")
        self.network = self.process.context.run(cluster.switch.join, NodeId(node_id))
        self.address = PeerAddress(self.identity, self.network.host, self.network.port)
        self.accepted: list[Recorder] = []
        self.network.open(PeerCredentials("cluster", secret, lambda: self.identity))
        self.network.accept(self._accept)

    def _accept(self, link: PeerLink, service: PeerService) -> Recorder:
        assert service in (PeerService.REPLICATION, PeerService.CALLS)
        self.accepted.append(Recorder(link))
        return self.accepted[-1]


class Cluster:
    """A loop with a network; `run` executes a coroutine in a broker's process."""

    def __init__(self, seed: int) -> None:
        self.loop = VirtualLoop()
        self.switch = PeerSwitch(self.loop, Random(seed))
        self.starts = 0

    def wait(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def dial(self, node: Node, address: PeerAddress, service: PeerService = PeerService.REPLICATION) -> Recorder:
        recorders: list[Recorder] = []

        def answer(link: PeerLink) -> Recorder:
            recorders.append(Recorder(link))
            return recorders[-1]

        link = self.run(node, node.network.dial(address, service, answer))
        assert link is recorders[0].link
        return recorders[0]

    def run(self, node: Node, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.loop.create_task(work, context=node.process.context.copy()))


@pytest.fixture(params=range(5))
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(request.param)
    yield made
    made.loop.end()


def linked(cluster: Cluster) -> tuple[Node, Node, Recorder, Recorder]:
    """Return two brokers, and both ends of a link that the first has dialled."""
    one, two = Node(cluster, 1), Node(cluster, 2)
    dialled = cluster.dial(one, two.address)
    return one, two, dialled, two.accepted[0]


def test_frames_arrive_once_and_in_order(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)
    sent = [b"%d" % number * (number * 50 + 1) for number in range(200)]
    for frame in sent:
        dialled.link.send(frame[:1], frame[1:])
        accepted.link.send(frame)

    cluster.wait(60)

    assert accepted.frames == sent
    assert dialled.frames == sent
    assert dialled.link.unsent_bytes == 0


def test_both_ends_know_their_peer(cluster: Cluster) -> None:
    one, two, dialled, accepted = linked(cluster)

    assert dialled.link.peer == two.identity
    assert accepted.link.peer == one.identity


def test_a_closed_link_ends_at_both_ends(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)

    dialled.link.close("enough")
    assert dialled.reasons == ["enough"]
    dialled.link.close("again")
    dialled.link.send(b"late")
    cluster.wait(1)

    assert (len(dialled.reasons), len(accepted.reasons), accepted.frames) == (1, 1, [])


def test_a_violation_of_the_protocol_ends_the_link(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)
    accepted.violation = "bad frame"

    dialled.link.send(b"x")
    cluster.wait(1)

    assert accepted.reasons == ["bad frame"]
    assert len(dialled.reasons) == 1


def test_a_link_for_an_unknown_purpose_is_refused(cluster: Cluster) -> None:
    def refuse(link: PeerLink, service: PeerService) -> Recorder:
        raise ProtocolViolation("no such service")

    one, two = Node(cluster, 1), Node(cluster, 2)
    two.network.accept(refuse)

    with pytest.raises(PeerUnreachable):
        cluster.dial(one, two.address)


def test_an_idle_link_lives(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)

    cluster.wait(20 * PEER_SILENCE_LIMIT_S)

    assert not dialled.reasons + accepted.reasons


def test_a_short_cut_delays_frames(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)
    cluster.switch.cut(NodeId(1), NodeId(2))
    dialled.link.send(b"delayed")
    accepted.link.send(b"at once")

    cluster.wait(PEER_SILENCE_LIMIT_S / 2)
    assert (accepted.frames, dialled.frames) == ([], [b"at once"])
    cluster.switch.heal()
    cluster.wait(1)

    assert accepted.frames == [b"delayed"]


def test_held_answers_are_overtaken_by_other_links(cluster: Cluster) -> None:
    one, two, _, _ = linked(cluster)
    asked, called_back = (
        cluster.dial(one, two.address, PeerService.CALLS),
        cluster.dial(two, one.address, PeerService.CALLS),
    )
    answering = two.accepted[1]

    cluster.switch.hold_answers(NodeId(2), NodeId(1), 1.0)
    answering.link.send(b"answer")
    asked.link.send(b"next call")
    called_back.link.send(b"call")
    cluster.wait(0.9)
    assert (asked.frames, answering.frames, one.accepted[0].frames) == ([], [b"next call"], [b"call"])
    cluster.wait(0.5)

    assert asked.frames == [b"answer"]


def test_a_cut_of_one_direction_ends_the_link_where_nothing_arrives_and_then_at_the_other_end(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)

    cluster.switch.cut(NodeId(1), NodeId(2))
    cluster.wait(PEER_SILENCE_LIMIT_S * 2)

    assert "silent" in accepted.reasons[0]
    assert "silent" in dialled.reasons[0]  # The notice of the other end, which still arrives.


def test_a_reset_ends_the_link_at_both_ends_and_loses_frames_on_the_way(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)
    dialled.link.send(b"lost")

    cluster.switch.reset(NodeId(2), NodeId(1))
    cluster.wait(0.5)

    assert (dialled.reasons, accepted.reasons, accepted.frames) == (["connection reset"], ["connection reset"], [])


def test_a_killed_process_ends_its_links_and_refuses_new_ones(cluster: Cluster) -> None:
    one, two, dialled, accepted = linked(cluster)

    two.process.kill()
    cluster.wait(0.5)

    assert (len(dialled.reasons), accepted.reasons) == (1, [])
    with pytest.raises(PeerUnreachable) as unreachable:
        cluster.dial(one, two.address)
    assert unreachable.value.is_gone


def test_a_machine_without_power_is_found_dead_by_its_silence(cluster: Cluster) -> None:
    one, two, dialled, _ = linked(cluster)

    cluster.switch.lose_power(NodeId(2))
    two.process.kill()
    cluster.wait(PEER_SILENCE_LIMIT_S / 2)
    assert not dialled.reasons
    cluster.wait(PEER_SILENCE_LIMIT_S)

    assert "silent" in dialled.reasons[0]
    with pytest.raises(PeerUnreachable) as unreachable:
        cluster.dial(one, two.address)
    assert not unreachable.value.is_gone


def test_a_paused_process_is_silent_and_then_finds_its_links_ended(cluster: Cluster) -> None:
    _, two, dialled, accepted = linked(cluster)

    two.process.pause()
    dialled.link.send(b"before")
    cluster.wait(PEER_SILENCE_LIMIT_S * 2)
    assert "silent" in dialled.reasons[0]
    assert not accepted.reasons + accepted.frames
    two.process.resume()
    cluster.wait(1)

    assert len(accepted.reasons) == 1


def test_a_short_pause_ends_nothing(cluster: Cluster) -> None:
    _, two, dialled, accepted = linked(cluster)

    two.process.pause()
    dialled.link.send(b"held")
    cluster.wait(PEER_SILENCE_LIMIT_S * 0.6)
    two.process.resume()
    cluster.wait(PEER_SILENCE_LIMIT_S * 2)

    assert (accepted.frames, dialled.reasons, accepted.reasons) == ([b"held"], [], [])


def test_a_late_frame_of_an_old_link_does_not_reach_the_new_one(cluster: Cluster) -> None:
    one, two, dialled, _ = linked(cluster)
    cluster.switch.cut(NodeId(1), NodeId(2))
    dialled.link.send(b"old")
    cluster.wait(0.1)

    two.process.kill()
    cluster.switch.heal()
    again = Node(cluster, 2)
    renewed = cluster.dial(one, again.address)
    renewed.link.send(b"new")
    cluster.wait(5)

    assert again.accepted[0].frames == [b"new"]


def test_a_dial_of_an_earlier_start_is_refused(cluster: Cluster) -> None:
    one, two = Node(cluster, 1), Node(cluster, 2)
    two.process.kill()
    Node(cluster, 2)

    with pytest.raises(PeerUnreachable):
        cluster.dial(one, two.address)


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_dial_without_an_answer_gives_up(cluster: Cluster, is_paused: bool) -> None:
    one, two = Node(cluster, 1), Node(cluster, 2)
    if is_paused:
        two.process.pause()
    else:
        cluster.switch.cut(NodeId(2), NodeId(1))

    with pytest.raises(PeerUnreachable) as unreachable:
        cluster.dial(one, two.address)
    two.process.resume()
    cluster.wait(10)

    assert not unreachable.value.is_gone
    assert all(recorder.reasons for recorder in two.accepted)


def test_a_broker_without_the_secret_is_refused(cluster: Cluster) -> None:
    one, two = Node(cluster, 1, secret=b"x" * 32), Node(cluster, 2)

    with pytest.raises(PeerUnreachable):
        cluster.dial(one, two.address)
    assert not two.accepted


def test_file_slices_are_read_when_they_are_sent(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)
    file = MemoryDisk().open("log", create=True)
    file.append([b"0123456789"])
    dialled.link.send(b"slice: ", FileSlice(file, 2, 3))

    cluster.wait(1)

    assert accepted.frames == [b"slice: 234"]


def test_a_slice_that_cannot_be_read_ends_the_link(cluster: Cluster) -> None:
    _, _, dialled, accepted = linked(cluster)
    file = MemoryDisk().open("log", create=True)
    failures: list[StorageFailure] = []
    dialled.link.send(FileSlice(file, 0, 3, failures.append))

    cluster.wait(1)

    assert (len(failures), len(dialled.reasons), len(accepted.reasons), accepted.frames) == (1, 1, 1, [])


def test_a_frame_above_the_limit_ends_its_link(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.cluster.peer_network.MAX_FRAME_BYTES", 10)
    _, _, dialled, accepted = linked(cluster)
    dialled.link.send(bytes(10))
    dialled.link.send(bytes(11))

    cluster.wait(1)

    assert ([len(frame) for frame in accepted.frames], accepted.reasons) == (
        [10],
        ["a frame of 11 bytes; the limit is 10"],
    )
    assert len(dialled.reasons) == 1


def test_bytes_beyond_the_window_wait_at_the_sender(cluster: Cluster) -> None:
    _, two, dialled, accepted = linked(cluster)
    two.process.pause()
    for _ in range(40):
        dialled.link.send(bytes(10_000))

    cluster.wait(PEER_SILENCE_LIMIT_S / 2)
    assert dialled.link.unsent_bytes > 300_000
    two.process.resume()
    cluster.wait(30)

    assert len(accepted.frames) == 40
    assert dialled.link.unsent_bytes == 0
