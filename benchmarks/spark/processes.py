"""What the processes below this one take: memory and CPU time."""

import threading
from collections.abc import Callable
from contextlib import suppress

import psutil

_PAUSE_S = 0.1


def peak_worker_bytes(work: Callable[[], object]) -> int:
    """Do some work, and return the largest resident size that any Python process below this one had meanwhile.

    The processes fork from one another and share memory; each counts all that it sees.
    """
    done = threading.Event()
    peaks: list[int] = [0]

    def watch() -> None:
        while not done.wait(_PAUSE_S):
            peaks[0] = max(peaks[0], *_sizes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return peaks[0]


def _sizes() -> list[int]:
    sizes = [0]
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "pyspark" in command and "java" not in process.name():
                sizes.append(int(process.memory_info().rss))
    return sizes


def cpu_seconds() -> float:
    """User and system time so far of all processes below this one, also of those that have ended."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:4])
    return seconds
