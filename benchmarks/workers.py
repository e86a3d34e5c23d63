"""Running load generators side by side, each in a process of its own, from one common start."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

Work = tuple[Callable[..., Any], tuple[Any, ...]]

_READY_TIMEOUT_S = 120


class Gate(Protocol):
    """Where every worker waits until all are ready."""

    def wait(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Together:
    """seconds: from the common start to the last end. results: what each work returned, in order."""

    seconds: float
    results: list[Any]


def work(function: Callable[..., Any], *arguments: Any) -> Work:
    """`function(gate, *arguments)`: prepares, calls `gate.wait()`, works, and returns something picklable."""
    return function, arguments


def run_together(*works: Work) -> Together:
    """Run each work in a process of its own. Raises what the first failed one raised."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(len(works) + 1)
    processes, answers = [], []
    try:
        for function, arguments in works:
            answer, answering = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(function, gate, answering, arguments), daemon=True)
            process.start()
            answering.close()
            processes.append(process)
            answers.append(answer)
        started = _open(gate)
        outcomes = [_outcome(each) for each in answers]
    finally:
        for process in processes:
            process.terminate()
            process.join()
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if failures:
        raise failures[0]
    return Together(max(ended for ended, _ in outcomes) - started, [result for _, result in outcomes])


def _open(gate: Any) -> float:
    with suppress(threading.BrokenBarrierError):  # A worker has failed: what it raised is among the outcomes.
        gate.wait(_READY_TIMEOUT_S)
    return time.monotonic()


def _outcome(answer: Connection) -> Any:
    """When a work ended and what it returned, or what it raised."""
    try:
        return answer.recv()
    except EOFError:
        return RuntimeError("a load generator died")


def _run(function: Callable[..., Any], gate: Any, answering: Connection, arguments: tuple[Any, ...]) -> None:
    outcome: Any
    try:
        result = function(gate, *arguments)
        outcome = time.monotonic(), result
    except Exception as error:  # noqa: BLE001 - handed to whoever started the worker
        gate.abort()
        outcome = error
    answering.send(outcome)
