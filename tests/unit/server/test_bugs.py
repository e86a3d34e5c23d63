"""A bug in any callback of the event loop stops the broker."""

import asyncio

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
