"""What holds for every request: it is carried out or given up."""

import asyncio
from typing import Any

import pytest

from conveyor.http_api.application import ENDPOINTS, carry_out
from conveyor.kernel.errors import ErrorKind, RequestError


class Work:
    """Ends when it is told to, well or with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = False
        self._error = error

    async def __call__(self) -> int:
        self.begun.set()
        await self.may_end.wait()
        self.ended = True
        if self._error is not None:
            raise self._error
        return 7


async def test_work_is_carried_out_though_its_client_has_gone() -> None:
    work = Work()
    request = asyncio.ensure_future(carry_out(work()))
    await work.begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    work.may_end.set()
    await asyncio.sleep(0)
    assert work.ended


async def test_work_answers_with_what_it_returns() -> None:
    work = Work()
    work.may_end.set()
    assert await carry_out(work()) == 7


@pytest.mark.parametrize(
    ("error", "is_bug"), [(AssertionError("bug"), True), (RequestError(ErrorKind.LEASE_LOST, "gone"), False)]
)
async def test_bug_is_told_though_its_client_has_gone(error: Exception, is_bug: bool) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    work = Work(error)
    request = asyncio.ensure_future(carry_out(work()))
    await work.begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    work.may_end.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [each["exception"] for each in told] == ([error] if is_bug else [])


def test_endpoints_are_declared_once() -> None:
    declared = [(each.method, each.path) for each in ENDPOINTS]
    assert len(set(declared)) == len(declared)


def test_endpoints_that_change_something_are_carried_out() -> None:
    assert {each.method for each in ENDPOINTS if not each.is_carried_out} == {"GET"}
