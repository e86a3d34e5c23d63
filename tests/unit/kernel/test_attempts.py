"""A bug of the work is passed on, and not raised."""

import pytest

from conveyor.kernel.attempts import attempt


def test_bug_is_passed_on_and_not_raised() -> None:
    bugs: list[Exception] = []
    done: list[int] = []
    attempt(bugs.append, done.append, 1)
    attempt(bugs.append, done.remove, 9)
    attempt(bugs.append, done.append, 2)
    assert done == [1, 2]
    assert [type(bug) for bug in bugs] == [ValueError]


def test_result_is_that_of_the_work_or_of_the_failure() -> None:
    assert attempt(lambda error: str(error), "x".join, ["a", "b"]) == "axb"
    assert attempt(lambda error: type(error).__name__, "x".join, [1]) == "TypeError"


def test_the_end_of_the_process_is_no_bug() -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    bugs: list[Exception] = []
    with pytest.raises(KeyboardInterrupt):
        attempt(bugs.append, leave)
    assert not bugs
