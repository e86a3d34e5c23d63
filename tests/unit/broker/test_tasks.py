"""Background work that fails stops the broker, unless only one request notices."""

import pytest

from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import InconsistentState


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
