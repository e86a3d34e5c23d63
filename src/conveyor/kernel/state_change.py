"""Marks the code that changes state, where an unexpected exception must stop the broker."""

from types import TracebackType

from conveyor.kernel.errors import InconsistentState


class StateChange:
    """A context that turns exceptions into InconsistentState: memory may differ from the logs after them.

    what: describes the change, in parts that are only joined for the error. expected: exceptions that leave the state
    as it was, and pass.
    """

    __slots__ = ("_expected", "_what")

    def __init__(self, *what: object, expected: type[Exception] | tuple[()] = ()) -> None:
        self._what = what
        self._expected = expected

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, (InconsistentState, self._expected)):
            raise InconsistentState(": ".join(map(str, self._what))) from error
