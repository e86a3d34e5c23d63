"""Every request either runs to completion or is cancelled."""

import asyncio
from typing import Any

import pytest

from conveyor.http_api.application import ENDPOINTS, run_to_completion
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError


class Work:
    """Ends on request, with a result or with an error."""

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


async def test_work_runs_to_completion_after_a_disconnect() -> None:
    work = Work()
    request = asyncio.ensure_future(run_to_completion(work()))
    await work.begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    work.may_end.set()
    await asyncio.sleep(0)
    assert work.ended


async def test_work_returns_its_result() -> None:
    work = Work()
    work.may_end.set()
    assert await run_to_completion(work()) == 7


@pytest.mark.parametrize(
    ("error", "stops", "is_bug"),
    [
        (InconsistentState("bug"), True, True),
        (AssertionError("bug"), False, True),
        (RequestError(ErrorKind.LEASE_LOST, "gone"), False, False),
    ],
)
async def test_bug_is_reported_after_a_disconnect(
    error: Exception, stops: bool, is_bug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    work = Work(error)
    request = asyncio.ensure_future(run_to_completion(work()))
    await work.begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    work.may_end.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [context["exception"] for context in contexts] == ([error] if stops else [])
    assert ("request failed" in caplog.text) == is_bug


def test_endpoints_are_declared_once() -> None:
    declared = [(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]
    assert len(set(declared)) == len(declared)


def test_endpoints_that_change_something_run_to_completion() -> None:
    assert {endpoint.method for endpoint in ENDPOINTS if not endpoint.runs_to_completion} == {"GET"}
