"""An exception in the middle of a change of state is InconsistentState, unless it is expected."""

import pytest

from conveyor.kernel.errors import ConveyorError, ErrorKind, InconsistentState, RequestError
from conveyor.kernel.state_change import StateChange


def test_a_bug_is_inconsistent_state() -> None:
    with pytest.raises(InconsistentState, match="orders-0: Settle") as stops, StateChange("orders-0", "Settle"):
        raise KeyError("a bug")
    assert isinstance(stops.value.__cause__, KeyError)


def test_only_expected_errors_pass() -> None:
    refused = RequestError(ErrorKind.INVALID_REQUEST, "no")
    with pytest.raises(RequestError), StateChange("orders-0", expected=ConveyorError):
        raise refused
    with pytest.raises(InconsistentState), StateChange("orders-0"):
        raise refused


@pytest.mark.parametrize("error", [InconsistentState("within"), KeyboardInterrupt()])
def test_what_stops_the_broker_anyway_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as passed, StateChange("orders-0"):
        raise error
    assert passed.value is error
