"""One WebSocket: messages, pings, closes, what is no frame, slow clients and applications, memory, and the stop."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conveyor.http.engine.wire import LINGER_S, WRITE_S
from conveyor.kernel.request_budget import BEFORE_SHARE_BYTES
from conveyor.kernel.response_budget import BudgetFull
from tests.callers import ALICE
from tests.unit.http.engine.test_http_connection import get
from tests.unit.http.memory_wire import IDLE_S, LIMIT_BYTES, RECEIVE_MS
from tests.unit.http.websocket_client import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WebSocketClient,
    close,
    frame,
)

GREETING = "Grüße 🐫".encode()

FAILED = {
    "no mask": (frame(TEXT, b"a", mask=None), 1002),
    "no UTF-8": (frame(TEXT, b"\xc3("), 1007),
    "half a character": (frame(TEXT, "🐫".encode()[:2]), 1007),
    "surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "no UTF-8 in the second frame": (frame(TEXT, b"\xf0\x9f", fin=False) + frame(CONTINUATION, b"a"), 1007),
    "reserved bit": (frame(TEXT, b"a", rsv=4), 1002),
    "unknown opcode": (frame(3, b"a"), 1002),
    "unknown control opcode": (frame(11), 1002),
    "continuation of nothing": (frame(CONTINUATION, b"a"), 1002),
    "message in a message": (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
    "divided ping": (frame(PING, b"a", fin=False), 1002),
    "long ping": (frame(PING, bytes(126)), 1002),
    "length in more bytes than it needs": (b"\x82\xfe\x00\x01mask\x00", 1002),
    "negative length": (b"\x82\xff" + b"\xff" * 8, 1002),
    "close with one byte": (frame(CLOSE, b"a"), 1002),
    "close with a code that is never sent": (close(1006), 1002),
    "close with an unknown code": (close(1100), 1002),
    "close with a small code": (close(999), 1002),
    "close without UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), 1007),
    "too large": (frame(BINARY, bytes(LIMIT_BYTES + 1)), 1009),
    "too large by its header": (frame(BINARY, bytes(LIMIT_BYTES + 1))[:14], 1009),
    "too large in all": (frame(BINARY, bytes(LIMIT_BYTES), fin=False) + frame(CONTINUATION, b"a"), 1009),
    "a request": (get("/after"), 1002),
}
FRAMES = {
    "text": frame(TEXT, GREETING),
    "bytes": frame(BINARY, bytes(range(256))),
    "empty": frame(TEXT),
    "long": frame(BINARY, bytes(70_000)),
    "parts": frame(TEXT, GREETING[:4], fin=False) + frame(PING, b"p") + frame(CONTINUATION, GREETING[4:]),
    "parts within a character": frame(TEXT, GREETING[:3], fin=False) + frame(CONTINUATION, GREETING[3:]),
    "empty parts": frame(BINARY, fin=False) + frame(CONTINUATION, fin=False) + frame(CONTINUATION),
    "first part": frame(TEXT, b"a", fin=False),
    "last part": frame(CONTINUATION, b"b"),
    "ping": frame(PING, b"payload"),
    "pong": frame(PONG, b"unasked"),
    "many": frame(PING) * 150,
    "close": close(3000, "enough"),
}


def outcome(data: bytes, cuts: tuple[int, ...] = ()) -> tuple[object, ...]:
    """Return what comes of some bytes. cuts: where to divide them."""
    client = WebSocketClient()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        client.send(data[begin:end])
    client.work()
    handler, service = client.handler, client.service
    memory = (client.budget.used_bytes, service.response_budget.used_bytes, service.in_progress)
    return handler.messages, handler.codes, client.take(), client.wire.state, client.reads(), memory


places = st.lists(st.integers(0, 100_000), max_size=8).map(tuple)


@given(st.lists(st.sampled_from([*FRAMES, *FAILED]), min_size=1, max_size=5), places)
@example(["parts", "no UTF-8"], tuple(range(200)))
@example(["first part", "too large"], (1, 2, 9, 12, 15, 20))
@settings(deadline=None)
def test_division_of_the_bytes_changes_nothing(names: list[str], cuts: tuple[int, ...]) -> None:
    data = b"".join(FRAMES[name] if name in FRAMES else FAILED[name][0] for name in names)
    assert outcome(data, cuts) == outcome(data)


@given(st.binary(max_size=200), st.sampled_from(list(FRAMES)), st.integers(0, 200), places)
@example(bytes(3), "parts within a character", 23, (12_598,))
@settings(deadline=None)
def test_damaged_bytes_have_one_outcome_however_divided(
    noise: bytes, name: str, place: int, cuts: tuple[int, ...]
) -> None:
    data = FRAMES[name][:place] + noise + FRAMES[name][place + len(noise) :]
    assert outcome(data, cuts) == outcome(data)


@pytest.mark.parametrize("name", [name for name in [*FRAMES, *FAILED] if not name.startswith(("long", "too large"))])
def test_byte_by_byte_nothing_changes(name: str) -> None:
    data = FRAMES[name] if name in FRAMES else FAILED[name][0]
    assert outcome(data, tuple(range(len(data)))) == outcome(data)


def test_messages_are_received_and_sent() -> None:
    client = WebSocketClient()
    client.send(b"".join(FRAMES[name] for name in ("text", "bytes", "empty", "long", "parts", "empty parts")))
    text = GREETING.decode()
    assert client.handler.messages == [text, bytes(range(256)), "", bytes(70_000), text, b""]
    assert client.read() == [text, bytes(range(256)), "", bytes(70_000), ("pong", b"p"), text, b""]
    assert (client.wire.state, client.handler.codes, client.budget.used_bytes) == ("open", [], 0)


@pytest.mark.parametrize("name", FAILED)
def test_what_is_no_frame_closes_the_connection(name: str) -> None:
    data, code = FAILED[name]
    client = WebSocketClient()
    client.send(data + frame(TEXT, b"after"))
    assert (client.read(), client.wire.state, client.handler.codes) == ([code], "ended", [code])
    assert (client.handler.messages, client.service.in_progress, client.budget.used_bytes) == ([], 0, 0)
    assert client.reads(), "the client could otherwise lose the reason"
    client.send(bytes(1000))
    client.advance(LINGER_S)
    assert client.wire.state == "closed"
    client.advance(WRITE_S)
    assert (client.wire.state, client.handler.codes) == ("aborted", [code])


def test_largest_message_is_received() -> None:
    client = WebSocketClient()
    first, ping, last = (
        frame(BINARY, bytes(LIMIT_BYTES - 1), fin=False),
        frame(PING, b"ping"),
        frame(CONTINUATION, b"a"),
    )
    client.send(first + ping + last + frame(TEXT, b"b"))
    assert [len(message) for message in client.handler.messages] == [LIMIT_BYTES, 1]


@pytest.mark.parametrize(("sent", "code"), [(close(1000, "bye"), 1000), (close(4999), 4999), (close(None), 1005)])
def test_client_closes(sent: bytes, code: int) -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"a") + sent + frame(TEXT, b"after"))
    assert client.read() == ["a", code]
    assert (client.handler.codes, client.handler.messages, client.wire.state) == ([code], ["a"], "closed")
    client.handler.websocket.send("late")
    client.handler.websocket.close()
    client.wire.machine.connection_lost()
    assert (client.take(), client.handler.codes, client.service.in_progress) == (b"", [code], 0)


def test_application_closes_and_the_client_answers() -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"half", fin=False))
    client.handler.websocket.close(4000, "done")
    client.handler.websocket.send("late")
    assert client.read() == [4000]
    client.send(frame(CONTINUATION, b"of it") + frame(TEXT, b"more") + frame(PING))
    assert (client.read(), client.wire.state, client.handler.codes) == ([], "open", [])
    client.send(close(4000))
    assert (client.read(), client.wire.state, client.handler.codes) == ([], "closed", [4000])
    assert client.handler.messages == []


@pytest.mark.parametrize("answer", [b"", frame(3), frame(TEXT, b"\xff")])
def test_close_that_is_not_answered_ends_the_connection(answer: bytes) -> None:
    client = WebSocketClient()
    client.handler.websocket.close()
    client.send(answer)
    client.advance(LINGER_S)
    assert (client.read(), client.wire.state, client.handler.codes) == ([1000], "closed", [1000])


@pytest.mark.parametrize("loses", ["end_of_input", "connection_lost"])
def test_client_that_disappears_has_closed_abnormally(loses: str) -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"a") * 150 + frame(TEXT, b"half", fin=False))
    if loses == "end_of_input":
        client.wire.machine.end_of_input()
        client.work()
        assert (len(client.handler.messages), client.wire.state) == (150, "closed")
    else:
        client.wire.machine.connection_lost()
        client.work()
    assert (client.handler.codes, client.service.in_progress, client.budget.used_bytes) == ([1006], 0, 0)


def test_silent_client_is_pinged_and_then_disconnected() -> None:
    client = WebSocketClient()
    client.advance(IDLE_S)
    assert client.read() == [("ping", b"")]
    client.advance(IDLE_S - 1)
    client.send(frame(PONG))
    client.advance(IDLE_S - 1)
    assert client.read() == []
    client.advance(1)
    assert client.read() == [("ping", b"")]
    client.advance(IDLE_S)
    assert (client.read(), client.handler.codes, client.wire.state) == ([1008], [1008], "ended")


def test_message_must_arrive_in_time() -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"a", fin=False))
    client.advance(RECEIVE_MS / 1000 / 2)
    client.send(frame(PING) + frame(CONTINUATION, b"b", fin=False))
    client.advance(RECEIVE_MS / 1000 / 2)
    assert (client.read(), client.handler.codes) == ([("pong", b""), 1008], [1008])


def test_time_for_a_message_ends_with_it() -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"a", fin=False) + frame(CONTINUATION, b"b"))
    client.advance(IDLE_S - 1)
    assert (client.read(), client.wire.state) == (["ab"], "open")


def test_many_frames_do_not_keep_the_loop() -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"a") * 1000)
    assert (len(client.handler.messages), client.reads()) == (64, False)
    client.work()
    assert (len(client.handler.messages), client.reads()) == (1000, True)


def test_application_sets_the_pace() -> None:
    client = WebSocketClient("/websocket/works")
    client.send(frame(TEXT, b"a" * 100) + frame(TEXT, b"b"))
    assert (len(client.handler.messages), client.reads(), client.budget.used_bytes) == (1, False, 100)
    client.advance(10 * IDLE_S)
    assert (client.read(), client.wire.state) == ([], "open"), "the client had no chance to send"
    client.handler.websocket.resume_reading()
    assert client.handler.messages[1:] == [], "who resumes does not receive at once"
    client.work()
    assert (client.handler.messages[1:], client.budget.used_bytes) == (["b"], 1)
    client.handler.websocket.resume_reading()
    client.work()
    assert (client.reads(), client.budget.used_bytes) == (True, 0)


@pytest.mark.parametrize("ends", ["connection_lost", "finish"])
def test_message_that_is_worked_on_counts_when_its_client_has_gone(ends: str) -> None:
    client = WebSocketClient("/websocket/works")
    client.send(frame(TEXT, b"a" * 100))
    getattr(client.wire.machine, ends)()
    client.work()
    if ends == "finish":
        client.send(close(1001))
    assert client.handler.codes == [1001 if ends == "finish" else 1006]
    assert (client.budget.used_bytes, client.service.in_progress) == (100, 1)
    client.handler.websocket.resume_reading()
    client.handler.websocket.resume_reading()
    client.work()
    assert (client.budget.used_bytes, client.service.in_progress) == (0, 0)


def test_client_that_does_not_read_is_not_read_and_the_application_is_told() -> None:
    client = WebSocketClient()
    client.wire.high_water_bytes = 1000
    client.send(frame(BINARY, bytes(2000)) + frame(TEXT, b"next"))
    handler, budget = client.handler, client.service.response_budget
    assert (handler.paces, len(handler.messages), client.reads()) == (["pause"], 1, False)
    assert budget.used_bytes == 2004
    handler.websocket.send(bytes(1 << 20))
    with pytest.raises(BudgetFull):
        handler.websocket.send(b"a")
    client.wire.high_water_bytes = None
    client.wire.machine.resume_writing()
    assert (handler.paces, len(handler.messages), client.reads()) == (["pause", "resume"], 2, True)
    assert budget.used_bytes == 0


def test_client_that_never_reads_is_disconnected() -> None:
    client = WebSocketClient()
    client.wire.high_water_bytes = 0
    client.send(frame(TEXT, b"a"))
    client.advance(WRITE_S)
    assert (client.wire.state, client.handler.codes) == ("aborted", [1006])
    assert (client.service.response_budget.used_bytes, client.service.in_progress) == (0, 0)


def test_messages_are_refused_while_requests_use_all_the_memory() -> None:
    client = WebSocketClient(budget_bytes=1000)
    client.budget.count_lasting(1000)
    client.send(frame(TEXT, b"a"))
    assert (client.read(), client.handler.codes, client.handler.messages) == ([1013], [1013], [])
    assert client.budget.used_bytes == 1000


def test_large_message_waits_for_its_share() -> None:
    client = WebSocketClient(budget_bytes=LIMIT_BYTES)
    other = client.budget.ask(LIMIT_BYTES, lambda: None)
    size = BEFORE_SHARE_BYTES
    client.send(frame(BINARY, bytes(size), fin=False))
    assert client.reads()
    client.send(frame(CONTINUATION, b"a", fin=False))
    assert not client.reads()
    client.advance(10 * IDLE_S)
    client.budget.give_back(other)
    assert not client.reads(), "the budget is granting shares"
    client.work()
    assert (client.reads(), client.budget.used_bytes) == (True, LIMIT_BYTES)
    client.advance(RECEIVE_MS / 1000 - 0.1)
    client.send(frame(CONTINUATION, b"b"))
    assert [len(message) for message in client.handler.messages] == [size + 2]
    assert client.budget.used_bytes == 0


@pytest.mark.parametrize("ends", ["connection_lost", "finish"])
def test_message_that_waits_for_its_share_may_end(ends: str) -> None:
    client = WebSocketClient(budget_bytes=LIMIT_BYTES)
    other = client.budget.ask(LIMIT_BYTES, lambda: None)
    client.send(frame(BINARY, bytes(BEFORE_SHARE_BYTES + 1), fin=False))
    getattr(client.wire.machine, ends)()
    assert client.budget.used_bytes == LIMIT_BYTES
    client.budget.give_back(other)
    client.work()
    assert (client.budget.used_bytes, client.budget.waiting_count) == (0, 0)


def test_bug_in_a_handler_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    client = WebSocketClient()
    client.send(frame(TEXT, b"bug") + frame(TEXT, b"after"))
    assert (client.read(), client.handler.codes, client.wire.state) == ([1011], [1011], "ended")
    assert "message of a websocket not handled" in caplog.text


def test_user_who_may_log_in_no_more_is_disconnected() -> None:
    client = WebSocketClient()
    client.application.exchanges[0].authenticated(ALICE.principal)
    client.wire.machine.log_out(["bob"])
    assert client.wire.state == "open"
    client.wire.machine.log_out(["alice"])
    client.send(frame(TEXT, b"after"))
    assert (client.read(), client.handler.codes, client.handler.messages) == ([1008], [1008], [])


def test_bug_while_nothing_is_read_leaves_a_connection_that_reads() -> None:
    client = WebSocketClient("/websocket/works")
    client.send(frame(TEXT, b"a"))
    client.handler.paces = None  # type: ignore[assignment]
    client.wire.high_water_bytes = 1
    assert not client.reads()
    client.handler.websocket.send("b")
    assert (client.handler.codes, client.wire.state, client.reads()) == ([1011], "ended", True)


def test_answer_that_finds_no_memory_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    client = WebSocketClient()
    client.service.response_budget.used_bytes = 1 << 40
    client.send(frame(TEXT, b"a"))
    assert (client.read(), client.handler.codes, caplog.records) == ([1013], [1013], [])
