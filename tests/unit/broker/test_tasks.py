"""Background work that fails stops the broker, unless only one request notices."""

import asyncio

import pytest

from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "stops"), [(KeyError("a bug"), False), (InconsistentState("a bug in a change"), True)]
)
async def test_bug_of_a_request_is_its_own_unless_it_may_have_changed_state(error: Exception, stops: bool) -> None:
    of_broker: list[BaseException] = []
    of_request: list[Exception] = []
    tasks = Tasks(of_broker.append)
    task = tasks.start(fail(error), of_request.append)
    with pytest.raises(type(error)):
        await task
    assert (of_broker, of_request) == ([error] if stops else [], [] if stops else [error])
    with pytest.raises(type(error)):
        await tasks.start(fail(error))
    assert of_broker[-1:] == [error]


def unexpected(error: BaseException) -> None:
    raise error


async def answers_of(error: Exception) -> tuple[ErrorKind, int]:
    """Return how a request is answered whose task fails, and the number of bugs that stop the broker."""
    bugs: list[BaseException] = []
    answers: asyncio.Queue[RequestError | None] = asyncio.Queue()
    Tasks(bugs.append).answer(fail(error), answers.put_nowait)
    answer = await answers.get()
    assert isinstance(answer, RequestError)
    assert answers.empty()
    return answer.kind, len(bugs)


async def test_request_is_answered_with_its_result_its_error_or_a_bug() -> None:
    answers: asyncio.Queue[int | RequestError] = asyncio.Queue()
    Tasks(unexpected).answer(asyncio.sleep(0, 7), answers.put_nowait)
    assert await answers.get() == 7
    refused = RequestError(ErrorKind.NOT_LEADER, "another broker leads")
    assert await answers_of(refused) == (ErrorKind.NOT_LEADER, 0)
    assert await answers_of(KeyError("a bug")) == (ErrorKind.UNKNOWN_SERVER_ERROR, 0)
    assert await answers_of(InconsistentState("a bug in a change")) == (ErrorKind.UNKNOWN_SERVER_ERROR, 1)


async def test_request_is_answered_when_the_broker_stops() -> None:
    tasks, answers = Tasks(unexpected), list[RequestError | None]()
    tasks.answer(asyncio.sleep(3600), answers.append)
    await tasks.stop()
    assert [answer and answer.kind for answer in answers] == [ErrorKind.REQUEST_TIMED_OUT]
