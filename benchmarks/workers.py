"""Running load generators side by side, each in a process of its own, from one common start."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

Work = tuple[Callable[..., Any], tuple[Any, ...]]


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
    results: Any = context.SimpleQueue()
    processes = [
        context.Process(target=_run, args=(function, gate, results, number, arguments))
        for number, (function, arguments) in enumerate(works)
    ]
    for process in processes:
        process.start()
    started = _open(gate)
    collected: dict[int, Any] = {}
    while len(collected) < len(processes):
        number, result = results.get()
        collected[number] = result
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    failures = [result for result in collected.values() if isinstance(result, BaseException)]
    if failures:
        raise failures[0]
    return Together(seconds, [collected[number] for number in range(len(processes))])


def _open(gate: Any) -> float:
    with suppress(threading.BrokenBarrierError):  # A worker has failed: what it raised is among the results.
        gate.wait(120)
    return time.perf_counter()


def _run(function: Callable[..., Any], gate: Any, results: Any, number: int, arguments: tuple[Any, ...]) -> None:
    try:
        result = function(gate, *arguments)
    except Exception as error:  # noqa: BLE001 - handed to whoever started the worker
        gate.abort()
        result = error
    results.put((number, result))
