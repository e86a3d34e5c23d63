"""Endpoints are called with what their signatures declare; their results, errors and bugs become responses."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from itertools import count
from typing import Any, Generic, TypeVar

import pytest
from msgspec import Struct

from conveyor.http.endpoints.content_encoding import SMALL_PACKED_BYTES
from conveyor.http.endpoints.endpoint import LONG_BODY_BYTES, Endpoint, NoQuery, Raw, Responder
from conveyor.http.endpoints.endpoint_application import EndpointApplication, Rights
from conveyor.http.engine.cross_origin import Origins
from conveyor.http.engine.exchange import Exchange, Service
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.kernel.access.declared_access import NO_ACCESS
from conveyor.kernel.errors import ErrorKind, QuotaExceeded, RequestError
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.unit.http.memory_wire import Client, until

Query = TypeVar("Query")
Body = TypeVar("Body")


class Call(Struct, Generic[Query, Body]):
    """What this test's door passes to an endpoint."""

    exchange: Any
    names: Mapping[str, str]
    query: Query
    body: Body


class Pair(Struct):
    """A body and a response."""

    left: int = 0
    right: int = 0


class LimitQuery(Struct, forbid_unknown_fields=True):
    """A query."""

    limit: int = 5


class Meter:
    """Keeps how often a request has worked."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def worked(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Quotas:
    """Whether there are quotas."""

    in_force = False


class Door:
    """Refuses what has the header `Refuse`."""

    text_hint = ""
    max_receive_ms = 1000
    origins: Origins | None = None
    rights: Rights | None = None

    def __init__(self) -> None:
        self.bugs: list[Exception] = []
        self.in_threads = 0
        self.quotas = Quotas()
        self.meter_of: Callable[[], Meter | None] = lambda: None

    def refusal(self, exchange: Exchange, endpoint: Endpoint | None) -> Response | None:
        return Response(403, b"no") if b"refuse" in exchange.request.fields else None

    def meter(self, exchange: Exchange, endpoint: Endpoint, query: Mapping[str, list[str]]) -> Meter | None:
        return self.meter_of()

    def body_limit(self, endpoint: Endpoint, names: Mapping[str, str]) -> int:
        return endpoint.body_limit(None, names)

    def call(self, exchange: Exchange, names: Mapping[str, str], query: Any, body: Any) -> Call[Any, Any]:
        return Call(exchange, names, query, body)

    async def in_thread(self, work: Callable[[], bytes], exchange: Exchange) -> bytes:
        self.in_threads += 1
        return work()

    def bug(self, error: Exception) -> None:
        self.bugs.append(error)


class Stage:
    """The endpoints of this test, and a client of them."""

    def __init__(self) -> None:
        self.door = Door()
        self.may_end = asyncio.Event()
        self.replies: list[Responder[Pair]] = []
        self.read: list[int] = []
        self.error: Exception | None = None
        self.application = EndpointApplication(self.endpoints(), self.door)
        service = Service(self.application, RequestBudget(10_000_000), DateHeader(ManualClock(0)), 10, count(1))
        self.client = Client(service=service)

    def later(self, call: Call[NoQuery, bytes], reply: Responder[Pair]) -> Coroutine[Any, Any, Pair] | None:
        """Responder when the test says so."""
        if call.body == b"now":
            reply(1, make=lambda left: Pair(left, 2))
            return None
        if call.body == b"long":
            return self.long()
        if self.error is not None:
            raise self.error
        self.replies.append(reply)
        return None

    async def long(self) -> Pair:
        await self.may_end.wait()
        return Pair(3, 4)

    def is_answered(self) -> bool:
        self.client.work()
        return self.client.wire.written != b""

    def is_quiet(self) -> bool:
        return self.client.service.in_progress == 0

    def endpoints(self) -> list[Endpoint]:
        async def swap(call: Call[NoQuery, Pair]) -> Pair:
            """Swap."""
            return Pair(call.body.right, call.body.left)

        async def wait(call: Call[NoQuery, None]) -> None:
            """Wait."""
            await self.may_end.wait()

        async def limit(call: Call[LimitQuery, None]) -> Raw:
            """Show the limit."""
            return Raw(f"{call.names['name']} {call.query.limit}".encode(), "text/plain", 202)

        async def large(call: Call[NoQuery, None]) -> Pair:
            """Hold memory."""
            call.exchange.memory.hold(1000)
            return Pair()

        async def fail(call: Call[NoQuery, None]) -> Pair:
            """Fail."""
            assert self.error is not None
            raise self.error

        async def read(body: bytes) -> Pair:
            self.read.append(len(body))
            return Pair(len(body), 0)

        async def read_whole(body: bytes) -> bytes:
            return body

        return [
            Endpoint(
                method="POST",
                path="/swap",
                needs=NO_ACCESS,
                function=swap,
                status=201,
                read=read,
                body_limit=lambda *_: 1 << 20,
            ),
            Endpoint(method="POST", path="/wait", needs=NO_ACCESS, function=wait),
            Endpoint(method="GET", path="/limits/{name}", needs=NO_ACCESS, function=limit),
            Endpoint(method="GET", path="/large", needs=NO_ACCESS, function=large, takes_head=False),
            Endpoint(method="POST", path="/fail", needs=NO_ACCESS, function=fail),
            Endpoint(method="POST", path="/later", needs=NO_ACCESS, function=self.later, status=201),
            Endpoint(
                method="POST",
                path="/messages",
                needs=NO_ACCESS,
                function=self.later,
                read=read_whole,
                body_limit=lambda *_: 1 << 20,
            ),
        ]

    def send(self, method: str, target: str, body: bytes = b"", *headers: str) -> None:
        lines = (f"{method} {target} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers, "", "")
        self.client.send("\r\n".join(lines).encode() + body)

    async def ask(self, method: str, target: str, body: bytes = b"", *headers: str) -> tuple[int, Any]:
        """Send a request, and return the status and the JSON of its response."""
        self.send(method, target, body, *headers)
        return await self.receive()

    async def receive(self) -> tuple[int, Any]:
        """Return the status and the JSON of the response that is due."""
        await until(self.is_answered)
        ((status, content),) = self.client.responses()
        try:
            return status, json.loads(content) if content else None
        except ValueError:
            return status, content


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.application.close()


async def test_body_and_result_are_documents(stage: Stage) -> None:
    assert await stage.ask("POST", "/swap", b'{"left":1}') == (201, {"left": 0, "right": 1})


async def test_query_and_names_are_passed(stage: Stage) -> None:
    assert await stage.ask("GET", "/limits/a%20b?limit=7") == (202, b"a b 7")
    assert await stage.ask("GET", "/limits/x") == (202, b"x 5")


async def test_result_of_none_is_no_content(stage: Stage) -> None:
    stage.may_end.set()
    assert await stage.ask("POST", "/wait") == (204, None)


async def test_callback_is_called_at_once_or_later_without_a_task(stage: Stage) -> None:
    before = len(asyncio.all_tasks())
    stage.send("POST", "/later", b"now")
    assert stage.client.responses() == [(201, b'{"left":1,"right":2}')]
    stage.send("POST", "/later")
    assert len(asyncio.all_tasks()) == before
    stage.replies[0](RequestError(ErrorKind.LEASE_LOST, "gone"))
    ((status, content),) = stage.client.responses()
    assert (status, json.loads(content)["kind"]) == (409, "lease_lost")


async def test_callback_may_leave_a_long_request_to_a_coroutine(stage: Stage) -> None:
    stage.send("POST", "/later", b"long")
    await asyncio.sleep(0)
    assert stage.client.responses() == []
    stage.may_end.set()
    assert await stage.receive() == (201, {"left": 3, "right": 4})
    stage.send("POST", "/later")
    stage.replies[0](stage.long())
    assert await stage.receive() == (201, {"left": 3, "right": 4})


async def test_bug_in_what_makes_a_document_does_not_reach_who_replies(stage: Stage) -> None:
    stage.send("POST", "/later")
    stage.replies[0](0, make=lambda answer: 1 / answer)
    assert stage.client.responses()[0][0] == 500
    assert [type(bug) for bug in stage.door.bugs] == [ZeroDivisionError]


@pytest.mark.parametrize(
    ("method", "target", "status", "kind"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("OPTIONS", "*", 404, "not_found"),
        ("GET", "/swap", 405, "method_not_allowed"),
        ("GET", "/limits/a?limit=x", 400, "invalid_request"),
        ("GET", "/limits/%ff", 400, "invalid_request"),
        ("POST", "/swap", 400, "invalid_request"),
    ],
)
async def test_request_that_no_endpoint_takes_is_refused(
    stage: Stage, method: str, target: str, status: int, kind: str
) -> None:
    found, problem = await stage.ask(method, target, b"[" if status == 400 else b"")
    assert (found, problem["kind"]) == (status, kind)


async def test_refusal_names_the_methods(stage: Stage) -> None:
    stage.send("PUT", "/limits/a")
    assert b"\r\nAllow: GET, HEAD\r\n" in stage.client.take()
    stage.send("HEAD", "/large")
    assert b"\r\nAllow: GET\r\n" in stage.client.take()


async def test_door_refuses_a_request_by_its_head(stage: Stage) -> None:
    assert (await stage.ask("GET", "/limits/a", b"", "Refuse: yes"))[0] == 403


@pytest.mark.parametrize("target", ["/fail", "/later"])
async def test_bug_is_a_response_and_noted(stage: Stage, target: str) -> None:
    stage.error = AssertionError("bug")
    status, problem = await stage.ask("POST", target)
    assert (status, problem["kind"]) == (500, "internal_error")
    assert stage.door.bugs == [stage.error]


async def test_error_of_a_request_is_no_bug(stage: Stage) -> None:
    stage.error = RequestError(ErrorKind.METADATA_UNAVAILABLE, "later")
    stage.send("POST", "/fail")
    await until(stage.is_answered)
    assert b"\r\nRetry-After: 1\r\n" in stage.client.take()
    assert stage.door.bugs == []


async def test_request_runs_to_completion_after_a_disconnect(stage: Stage) -> None:
    stage.send("POST", "/wait")
    await asyncio.sleep(0)
    stage.client.connection.connection_lost()
    assert stage.client.service.in_progress == 1
    stage.may_end.set()
    await until(stage.is_quiet)


async def test_bug_after_a_disconnect_is_noted(stage: Stage) -> None:
    stage.error = AssertionError("bug")
    stage.send("POST", "/fail")
    stage.client.connection.connection_lost()
    await until(stage.is_quiet)
    assert stage.door.bugs == [stage.error]


async def test_large_document_is_encoded_in_a_thread(stage: Stage) -> None:
    assert await stage.ask("GET", "/large") == (200, {"left": 0, "right": 0})
    assert stage.door.in_threads == 1
    assert stage.client.service.response_budget.used_bytes == 0


async def test_no_memory_for_a_response_is_a_problem(stage: Stage) -> None:
    stage.client.service.response_budget.used_bytes = 1 << 30
    status, problem = await stage.ask("GET", "/large")
    assert (status, problem["kind"], problem["retriable"]) == (503, "busy", True)


async def test_long_body_is_read_in_steps(stage: Stage) -> None:
    body = b" " * (LONG_BODY_BYTES - 2) + b"{}"
    assert (await stage.ask("POST", "/swap", body))[0] == 201
    assert stage.read == []
    assert await stage.ask("POST", "/swap", b" " + body) == (201, {"left": 0, "right": LONG_BODY_BYTES + 1})
    assert stage.read == [LONG_BODY_BYTES + 1]


@pytest.mark.parametrize(("size", "is_packed"), [(10, False), (400_000, False), (10, True), (900_000, True)])
async def test_body_with_messages_weighs_three_times_its_size(stage: Stage, size: int, is_packed: bool) -> None:
    """A large one has a share for that, a small one counts when it is complete."""
    body = b" " * size + b"{}"
    sent = gzip.compress(body, 0 if size > 10 else 9) if is_packed else body
    stage.send("POST", "/messages", sent, *["Content-Encoding: gzip"] * is_packed)
    await until(lambda: bool(stage.replies))
    budget = stage.client.service.request_budget
    most = (1 << 20 if size > 10 else len(body)) if is_packed else len(body)
    assert budget.used_bytes == 3 * most + len(sent) * is_packed
    stage.replies[0](Pair(1, 2))
    assert budget.used_bytes == 0


@pytest.mark.parametrize("size", [10, 500_000])
async def test_compressed_body_is_decompressed(stage: Stage, size: int) -> None:
    packed = gzip.compress(b" " * size + b'{"left":1}')
    assert (len(packed) > SMALL_PACKED_BYTES) == (size > 10)
    status, document = await stage.ask("POST", "/swap", packed, "Content-Encoding: gzip")
    assert (status, document["right"]) == (201, 1 if size == 10 else size + 10)
    assert stage.client.service.request_budget.held_bytes == 0


@pytest.mark.parametrize(
    ("packed", "encoding", "status"),
    [
        (b"plain", "gzip", 400),
        (gzip.compress(b"{}")[:-1], "gzip", 400),
        (gzip.compress(b"{}"), "br", 415),
        (gzip.compress(b"{}"), "gzip\r\nContent-Encoding: gzip", 415),
        (gzip.compress(bytes((1 << 20) + 1)), "gzip", 413),
        (b"{}", "identity", 201),
    ],
    ids=["plain", "truncated", "unknown", "twice", "too large", "identity"],
)
async def test_encoding_of_a_body_is_checked(stage: Stage, packed: bytes, encoding: str, status: int) -> None:
    assert (await stage.ask("POST", "/swap", packed, f"Content-Encoding: {encoding}"))[0] == status


async def test_compressed_body_waits_for_the_memory_for_what_it_contains(stage: Stage) -> None:
    packed = gzip.compress(b" " * 900_000 + b"{}")
    budget = stage.client.service.request_budget
    share = budget.ask(10_000_000, lambda: None)
    stage.send("POST", "/swap", packed, "Content-Encoding: gzip")
    assert budget.waiting_count == 1
    budget.give_back(share)
    assert (await stage.receive())[0] == 201


async def test_small_compressed_body_counts_for_what_it_contains(stage: Stage) -> None:
    packed = gzip.compress(bytes(400_000))
    assert len(packed) < SMALL_PACKED_BYTES
    stage.send("POST", "/later", packed, "Content-Encoding: gzip")
    await until(lambda: bool(stage.replies))
    budget = stage.client.service.request_budget
    assert (budget.held_bytes, budget.lasting_bytes) == (0, len(packed) + 400_000)
    stage.replies[0](Pair(1, 2))
    assert budget.used_bytes == 0


async def test_requests_in_progress_end_with_the_application(stage: Stage) -> None:
    stage.send("POST", "/wait")
    await asyncio.sleep(0)
    stage.client.connection.connection_lost()
    await stage.application.close()
    await asyncio.sleep(0)
    assert stage.client.service.in_progress == 0


async def test_body_that_an_endpoint_ignores_needs_no_share_of_the_memory(stage: Stage) -> None:
    budget = stage.client.service.request_budget
    share = budget.ask(10_000_000, lambda: None)
    stage.send("GET", "/limits/x", bytes(200_000))
    assert budget.waiting_count == 0
    assert (await stage.receive())[0] == 413
    budget.give_back(share)


async def test_time_of_a_metered_request_is_counted_without_its_waits(stage: Stage) -> None:
    meter = Meter()
    stage.door.quotas.in_force, stage.door.meter_of = True, lambda: meter
    stage.send("POST", "/later", b"now")
    assert stage.client.responses() == [(201, b'{"left":1,"right":2}')]
    assert len(meter.seconds) == 1, "the reply is a part of the call"
    stage.send("POST", "/later")
    assert len(meter.seconds) == 2
    stage.replies[0](5, make=lambda left: Pair(left, 6))
    assert len(meter.seconds) == 3, "a later reply is counted by itself"
    assert stage.client.responses() == [(201, b'{"left":5,"right":6}')]
    stage.send("POST", "/wait")
    await asyncio.sleep(0)
    before = len(meter.seconds)
    stage.may_end.set()
    assert await stage.receive() == (204, None)
    assert len(meter.seconds) == before + 2, "the last step of the coroutine, and the response"
    assert min(meter.seconds) >= 0


async def test_request_over_a_quota_says_when_to_try_again(stage: Stage) -> None:
    def over() -> Meter | None:
        raise QuotaExceeded("too much", 1001)

    stage.door.quotas.in_force, stage.door.meter_of = True, over
    stage.send("POST", "/swap", b"not even read")
    assert b"\r\nRetry-After: 2\r\n" in stage.client.take()


async def test_request_that_counts_for_no_quota_is_served(stage: Stage) -> None:
    stage.door.quotas.in_force = True
    assert await stage.ask("POST", "/swap", b'{"left":1}') == (201, {"left": 0, "right": 1})
    assert await stage.ask("GET", "/limits/x") == (202, b"x 5")


async def test_metered_request_that_is_cancelled_ends(stage: Stage) -> None:
    meter = Meter()
    stage.door.quotas.in_force, stage.door.meter_of = True, lambda: meter
    stage.send("POST", "/wait")
    await asyncio.sleep(0)
    await stage.application.close()
    assert (await stage.receive())[0] == 504
    stage.send("POST", "/wait")
    await stage.application.close()
    assert (await stage.receive())[0] == 504, "before its first step"
