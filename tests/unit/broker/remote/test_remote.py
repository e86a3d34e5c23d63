"""Calls between brokers: answers, errors as they are, lost links, limits, crafted frames."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.remote.answering import CallAnswerer
from conveyor.broker.remote.call_frames import Ask, decode_from_asker, encode_frame
from conveyor.broker.remote.calls import MAX_PAYLOAD_BYTES, Call, CallHandlers
from conveyor.broker.remote.remote import MAX_CALL_BYTES, AnswerLost, Remote
from conveyor.broker.remote.wire_errors import WireError, from_wire
from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import (
    ErrorKind,
    FencedLeaderEpoch,
    InconsistentState,
    NotLeader,
    ProtocolViolation,
    RequestError,
)
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.kernel.peers import PeerAddress, PeerIdentity, PeerUnreachable
from conveyor.kernel.ports import Bytes
from conveyor.records.record_checks import RecordError, RefusedRecords
from conveyor.testing import ManualClock
from tests.callers import CALLER
from tests.unit.broker.remote.linked_brokers import Cable, OneEnd
from tests.unit.broker.room_services import room_services

ONE, TWO = NodeId(1), NodeId(2)
TIMEOUT_MS = 1_000


class Ten(msgspec.Struct, frozen=True):
    """A request."""

    times: int


class Tens(msgspec.Struct, frozen=True):
    """A reply."""

    values: list[int] = []
    error: RequestError | None = None


TENFOLD: Call[Ten, Tens] = Call("tenfold", Ten, Tens, is_repeatable=True)


class Milliseconds(int):
    """A number with a type of its own, as the REST API parses durations."""


def test_numbers_of_other_types_are_sent_as_numbers() -> None:
    request = TENFOLD.decode_request(TENFOLD.encode_request(Ten(Milliseconds(7))))
    assert (request, type(request.times)) == (Ten(7), int)


class Pair:
    """Broker 1 asks broker 2, which answers by `answer`."""

    def __init__(self, answer: Callable[[Ten], Awaitable[Tens]]) -> None:
        self.clock = ManualClock()
        self.cable = Cable()
        self.bugs: list[BaseException] = []
        self.handlers: CallHandlers[Caller] = CallHandlers()
        self.handlers.register(TENFOLD, self._answer)
        self._answers = answer
        self.callers: list[Caller] = []
        self.seqs: list[int] = []
        tasks, metadata = Tasks(self.bugs.append), SimpleNamespace(image=ClusterImage(seq=7), applied=self)
        services = room_services(self.clock, tasks, metadata=cast("Metadata", metadata))
        self.answerer = CallAnswerer(services, self.handlers)
        self.incarnation = "a"
        self.start_again("a")
        links = ClusterLinks(services, self.cable.plug(PeerIdentity(ONE, "x")))
        links.address = self.address  # type: ignore[method-assign]
        self.remote = Remote(services, links)

    def start_again(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.cable.plug(PeerIdentity(TWO, incarnation)).accept(lambda link, _: self.answerer.accept(link))

    def address(self, node_id: NodeId) -> PeerAddress | None:
        return PeerAddress(PeerIdentity(node_id, self.incarnation), "two", 1) if node_id == TWO else None

    async def settled(self, seq: int) -> None:
        self.seqs.append(seq)

    async def _answer(self, caller: Caller, request: Ten) -> Tens:
        self.callers.append(caller)
        return await self._answers(request)

    async def ask(self, times: int = 1) -> Tens:
        return TENFOLD.decode_reply(
            await self.remote.ask(CALLER, TWO, TENFOLD.name, TENFOLD.encode_request(Ten(times)), TIMEOUT_MS)
        )

    @property
    def answering_link(self) -> OneEnd:
        return self.cable.links[-1].other


async def tens(request: Ten) -> Tens:
    return Tens([10] * request.times)


async def never(request: Ten) -> Tens:
    await asyncio.get_running_loop().create_future()
    return Tens()


async def rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_calls_share_one_link_and_each_gets_its_own_answer() -> None:
    pair = Pair(tens)
    assert await asyncio.gather(*(pair.ask(times) for times in (0, 1, 2))) == [Tens(), Tens([10]), Tens([10, 10])]
    assert pair.cable.dials == [TWO]
    assert pair.seqs == [7, 7, 7]
    assert not pair.bugs


@pytest.mark.parametrize("reply", [ValueError("bug"), Tens([object()])])  # type: ignore[list-item]
async def test_a_bug_in_an_answer_fails_the_call_alone(
    reply: Tens | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: Ten) -> Tens:
        if request.times == 1:
            return Tens([1])
        if isinstance(reply, Exception):
            raise reply
        return reply

    pair = Pair(answer)
    with pytest.raises(RequestError, match="bug") as failure:
        await pair.ask(2)
    assert failure.value.kind is ErrorKind.UNKNOWN_SERVER_ERROR
    assert await pair.ask(1) == Tens([1])
    assert not pair.bugs
    assert "Traceback" in caplog.text


async def test_a_bug_in_the_middle_of_a_change_stops_the_broker() -> None:
    bug = InconsistentState("bug")

    async def answer(request: Ten) -> Tens:
        raise bug

    pair = Pair(answer)
    asking = asyncio.ensure_future(pair.ask())
    await rest()
    pair.clock.advance(ms=TIMEOUT_MS)
    with pytest.raises(AnswerLost):
        await asking
    assert pair.bugs == [bug]


def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    with pytest.raises(RequestError) as failure:
        TENFOLD.encode_request(Ten(object()))  # type: ignore[arg-type]
    assert failure.value.kind is ErrorKind.UNKNOWN_SERVER_ERROR


async def test_answers_may_come_in_another_order() -> None:
    first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(request: Ten) -> Tens:
        if request.times == 1:
            await first
        return Tens([request.times])

    pair = Pair(answer)
    waiting = asyncio.ensure_future(pair.ask(1))
    assert await pair.ask(2) == Tens([2])
    first.set_result(None)
    assert await waiting == Tens([1])


@pytest.mark.parametrize(
    "error",
    [
        RequestError(ErrorKind.LEASE_LOST, "too late"),
        NotLeader("broker 3 leads", NodeId(3), LeaderEpoch(9)),
        NotLeader("no broker leads", None, LeaderEpoch(9)),
        FencedLeaderEpoch("the epoch is 9", NodeId(3), LeaderEpoch(9)),
        RefusedRecords(ErrorKind.INVALID_RECORD, "no key", (RecordError(2, "it has no key"),)),
    ],
)
async def test_errors_arrive_as_they_were_raised(error: RequestError) -> None:
    async def refuse(request: Ten) -> Tens:
        if request.times:
            return Tens(error=error)
        raise error

    pair = Pair(refuse)
    with pytest.raises(type(error)) as refused:
        await pair.ask(0)
    value = (await pair.ask(1)).error
    for received in (refused.value, value):
        assert received is not None
        assert type(received) is type(error)
        assert vars(received) == vars(error)
        assert str(received) == str(error)


def test_error_of_a_later_version_is_named() -> None:
    error = from_wire(WireError("TOO_HOT", "cool down"))
    assert error.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    assert "'TOO_HOT'" in error.message
    assert "cool down" in error.message


async def test_unknown_call_is_refused() -> None:
    pair = Pair(tens)
    with pytest.raises(RequestError, match="does not know the call 'ninefold'") as refused:
        await pair.remote.ask(CALLER, TWO, "ninefold", b"", TIMEOUT_MS)
    assert refused.value.kind is ErrorKind.UNSUPPORTED_VERSION
    assert await pair.ask() == Tens([10])


async def test_broker_without_an_address_cannot_be_reached() -> None:
    with pytest.raises(PeerUnreachable, match="broker 3 has no address"):
        await Pair(tens).remote.ask(CALLER, NodeId(3), "tenfold", b"", TIMEOUT_MS)


async def test_calls_fail_at_once_for_a_while_after_a_failed_dial() -> None:
    pair = Pair(tens)
    del pair.cable.networks[TWO]
    with pytest.raises(PeerUnreachable, match="refuses the connection") as refused:
        await pair.ask()
    assert not isinstance(refused.value, AnswerLost)
    pair.start_again("a")
    with pytest.raises(PeerUnreachable, match="a moment ago"):
        await pair.ask()
    pair.clock.advance(ms=50)
    assert await pair.ask() == Tens([10])


async def test_broker_that_has_registered_again_gets_another_link_at_once() -> None:
    pair = Pair(tens)
    assert await pair.ask() == Tens([10])
    pair.start_again("b")
    assert await pair.ask() == Tens([10])
    assert not pair.cable.links[0].is_open
    assert pair.cable.links[1].is_open


async def test_link_that_ends_loses_its_answers_and_ends_its_work() -> None:
    pair = Pair(never)
    waiting = asyncio.ensure_future(pair.ask())
    await rest()
    pair.answering_link.close("reset")
    with pytest.raises(AnswerLost, match="reset"):
        await waiting
    await rest()
    await pair.answerer.tasks.stop()
    assert len(pair.cable.links) == 1
    with pytest.raises(AnswerLost):
        await lost_again(pair)


async def lost_again(pair: Pair) -> None:
    waiting = asyncio.ensure_future(pair.ask())
    await rest()
    assert len(pair.cable.links) == 2
    pair.remote.stop()
    await waiting


async def test_call_ends_at_its_time_limit_and_its_work_is_cancelled() -> None:
    cancelled: list[int] = []

    async def answer(request: Ten) -> Tens:
        try:
            return await never(request)
        except asyncio.CancelledError:
            cancelled.append(request.times)
            raise

    pair = Pair(answer)
    late = asyncio.ensure_future(pair.ask(1))
    given_up = asyncio.ensure_future(pair.ask(2))
    await rest()
    given_up.cancel()
    await rest()
    assert cancelled == [2]
    pair.clock.advance(ms=TIMEOUT_MS)
    with pytest.raises(AnswerLost, match="within 1000 ms"):
        await late
    await rest()
    assert cancelled == [2, 1]
    assert pair.cable.links[0].is_open
    assert not pair.bugs


async def test_calls_that_wait_are_bounded() -> None:
    pair = Pair(never)
    waiting = [
        asyncio.ensure_future(pair.remote.ask(CALLER, TWO, "tenfold", bytes(MAX_CALL_BYTES // 2), TIMEOUT_MS))
        for _ in range(3)
    ]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = done
    with pytest.raises(RequestError, match="2 calls wait for broker 2"):
        await refused
    pair.remote.stop()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_calls_that_were_withdrawn_and_are_unsent_count_as_waiting() -> None:
    pair = Pair(tens)
    assert await pair.ask() == Tens([10])
    pair.cable.links[0].unsent_bytes = MAX_CALL_BYTES
    with pytest.raises(RequestError, match="ask again later"):
        await pair.ask()
    pair.cable.links[0].unsent_bytes = 0
    assert await pair.ask() == Tens([10])


async def test_answer_that_cannot_be_sent_fails_its_call_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(tens)
    assert await pair.ask() == Tens([10])
    send = pair.answering_link.send

    def refuse_large(*parts: Bytes) -> None:
        assert sum(map(len, parts)) < 1_000
        send(*parts)

    monkeypatch.setattr(pair.answering_link, "send", refuse_large)
    with pytest.raises(RequestError, match="a bug") as refused:
        await pair.ask(2_000)
    assert refused.value.kind is ErrorKind.UNKNOWN_SERVER_ERROR
    assert await pair.ask() == Tens([10])
    assert (pair.bugs, caplog.text.count("call failed name=tenfold")) == ([], 1)


async def test_answer_that_is_too_large_is_refused() -> None:
    async def answer(request: Ten) -> Tens:
        return Tens([10] * request.times)

    pair = Pair(answer)
    with pytest.raises(RequestError, match="ask for less at once") as refused:
        await pair.ask(MAX_PAYLOAD_BYTES)
    assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x00" * 3,
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode([1, 0, "tenfold", 0, b"", CALLER]),
        msgspec.msgpack.encode([1, 1, b"tenfold", 0, b"", CALLER]),
        msgspec.msgpack.encode([3, 1, b""]),
        msgspec.msgpack.encode([9, 1]),
        msgspec.msgpack.encode({"type": 1}),
        b"\x96\x01\x01\xa1\xff\x00\xc4\x00\xc0",
        msgspec.msgpack.encode([1, 1, "tenfold", 0, b""]),
        msgspec.msgpack.encode([1, 1, "tenfold", 0, b"", None]),
        msgspec.msgpack.encode([1, 1, "tenfold", 0, b"", "User:ANONYMOUS"]),
        msgspec.msgpack.encode([1, 1, "tenfold", 0, b"", [["User", ""], "192.0.2.1", "kafka", 1]]),
        msgspec.msgpack.encode([1, 1, "tenfold", 0, b"", [["User", "a"], "192.0.2.1", "kafka", 1, "later"]]),
        msgspec.msgpack.encode([1, 1, "tenfold", 0, b"", Caller.broker(TWO)]),
        b"\x91" * 100_000,
    ],
)
async def test_crafted_frames_end_the_link(frame: bytes) -> None:
    pair = Pair(tens)
    await pair.ask()
    end = pair.answerer.accept(pair.answering_link)
    with pytest.raises(ProtocolViolation):
        end.received(frame)
    asking = pair.cable.links[0].end
    assert asking is not None
    with pytest.raises(ProtocolViolation):
        asking.received(frame if frame[:2] != b"\x93\x03" else b"\x92\x03\x01")


async def test_crafted_request_ends_the_link() -> None:
    pair = Pair(tens)
    with pytest.raises(AnswerLost, match="'tenfold': Expected"):
        await pair.remote.ask(CALLER, TWO, "tenfold", b"\x90", TIMEOUT_MS)
    assert not pair.bugs


async def test_call_id_is_used_once() -> None:
    pair = Pair(never)
    waiting = asyncio.ensure_future(pair.ask())
    await rest()
    pair.cable.links[0].send(encode_frame(Ask(1, "tenfold", 0, b"", CALLER)))
    with pytest.raises(AnswerLost, match="call id 1 is used already"):
        await waiting


async def test_a_call_carries_its_caller() -> None:
    pair = Pair(tens)
    await pair.ask()
    own = Caller.broker(ONE)
    await pair.remote.ask(own, TWO, TENFOLD.name, TENFOLD.encode_request(Ten(1)), TIMEOUT_MS)
    assert pair.callers == [CALLER, own]


async def test_a_broker_asks_in_the_name_of_no_other_one() -> None:
    pair = Pair(tens)
    with pytest.raises(AnswerLost, match="Broker:1 asks for Broker:2"):
        await pair.remote.ask(Caller.broker(TWO), TWO, TENFOLD.name, TENFOLD.encode_request(Ten(1)), TIMEOUT_MS)
    assert not pair.callers


def test_the_bytes_of_a_call() -> None:
    """Written by hand, not by this encoder: array of 6, then its elements. A caller takes 20 to 50 bytes."""
    head = b"\x96\x01\x07\xa7tenfold\xcd\x01\x2c\xc4\x02\x91\x03"
    caller = b"\x94\x92\xa4User\xa9ANONYMOUS\xa9192.0.2.1\xa9PLAINTEXT\x01"
    frame = encode_frame(Ask(7, "tenfold", 300, b"\x91\x03", CALLER))
    assert frame == head + caller
    assert decode_from_asker(frame) == Ask(7, "tenfold", 300, b"\x91\x03", CALLER)
    assert len(encode_frame(CALLER)) == 38
    assert len(encode_frame(Caller.broker(ONE))) == 18
