"""A progress bar with a live rate, on a terminal; a line at the end, elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class CountProgress:
    """Shows how many of how many are done, and how fast."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=None, rate="")
        self._started = time.monotonic()
        self.done = 0

    def describe(self, description: str) -> None:
        """Begin the next step: the clock of the rate starts anew."""
        self._started = time.monotonic()
        self._progress.update(self._task, description=description)

    def update(self, done: int, total: int) -> None:
        self.done = done
        self._progress.update(self._task, completed=done, total=total, rate=f"{self.rate():,.0f}/s")

    def rate(self) -> float:
        """Per second, since the step began."""
        return self.done / max(1e-6, time.monotonic() - self._started)


@contextmanager
def count_progress(description: str) -> Iterator[CountProgress]:
    """A bar that goes away when it is done."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield CountProgress(progress, description)
