"""A bug in a callback of the event loop stops the broker; a bug in a request fails that request."""

import asyncio
from collections.abc import Callable

import pytest

from conveyor.kafka_api.registry import HANDLERS
from conveyor.kafka_api.wire import connection
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import InconsistentState
from conveyor.server.addresses import Address
from tests.unit.server.memory_server import running, server


def fail() -> None:
    raise AssertionError("a bug")


async def test_exception_in_a_callback_stops_the_broker() -> None:
    async with running(server()) as started:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.wait_for(started.stopping.wait(), 10)
        assert isinstance(started.failure, AssertionError)


async def test_error_of_a_socket_does_not_stop_the_broker() -> None:
    async with running(server()) as started:
        context = {"message": "write failed", "exception": ConnectionResetError()}
        asyncio.get_running_loop().call_exception_handler(context)
        assert not started.stopping.is_set()
        assert started.failure is None


API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"
API_VERSIONS_KEY = 18


async def exchange(address: Address, request: bytes) -> bytes:
    """Return the first bytes of the response; none if the broker closes the connection."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(1_000), 10)
    writer.close()
    return answer


async def fail_later(*_: object) -> None:
    fail()


def fail_at_once(call: KafkaCall) -> None:
    fail()


def fail_in_a_task(call: KafkaCall) -> None:
    call.start(fail_later())


def fail_in_a_callback(call: KafkaCall) -> None:
    call.guarded(lambda _call, _result: fail())(None)


@pytest.mark.parametrize("handle", [fail_at_once, fail_in_a_task, fail_in_a_callback])
async def test_bug_in_a_kafka_request_closes_its_connection(
    handle: Callable[[KafkaCall], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(server()) as started:
        with monkeypatch.context() as patch:
            patch.setitem(HANDLERS, API_VERSIONS_KEY, handle)
            assert await exchange(started.kafka_address, API_VERSIONS) == b""
        assert "request failed api_key=18" in caplog.text
        assert "Traceback" in caplog.text
        assert len(await exchange(started.kafka_address, API_VERSIONS)) > 10
        assert started.failure is None


async def test_bug_in_a_decoder_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode(*_: object) -> None:
        fail()

    async with running(server()) as started:
        with monkeypatch.context() as patch:
            patch.setattr(connection, "decode_request", decode)
            assert await exchange(started.kafka_address, API_VERSIONS) == b""
        assert "request not decoded" in caplog.text
        assert "Traceback" in caplog.text
        assert len(await exchange(started.kafka_address, API_VERSIONS)) > 10
        assert started.failure is None


async def test_bug_in_a_change_of_state_by_a_kafka_request_stops_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = InconsistentState("a bug")

    async def change() -> None:
        raise bug

    async with running(server()) as started:
        monkeypatch.setitem(HANDLERS, API_VERSIONS_KEY, lambda call: call.start(change()))
        reader, writer = await asyncio.open_connection(started.kafka_address.host, started.kafka_address.port)
        writer.write(API_VERSIONS)
        await asyncio.wait_for(started.stopping.wait(), 10)
        assert started.failure is bug
        writer.close()
        await asyncio.wait_for(reader.read(), 10)


@pytest.mark.parametrize("stops", [False, True])
async def test_bug_in_a_rest_request_is_a_500(
    stops: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bug = InconsistentState("a bug") if stops else AssertionError("a bug")

    def answer() -> None:
        raise bug

    async with running(server()) as started:
        monkeypatch.setattr(started.broker.schedules, "all", answer)
        request = b"GET /schedules HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await exchange(started.http_address, request)).startswith(b"HTTP/1.1 500 ")
        assert "request failed" in caplog.text
        assert started.failure is (bug if stops else None)
