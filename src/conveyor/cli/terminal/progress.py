"""A progress bar with a live rate, shown only on a terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class CountProgress:
    """Shows the number done, the total and the rate."""

    def __init__(self, progress: Progress, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=None, rate="")
        self._started = time.monotonic()
        self.done = 0

    def describe(self, description: str) -> None:
        """Begin the next step, and measure its rate from now on."""
        self._started = time.monotonic()
        self._progress.update(self._task, description=description)

    def update(self, done: int, total: int | None) -> None:
        """Show how much is done. total: None for a stream, which has no end."""
        self.done = done
        self._progress.update(self._task, completed=done, total=total, rate=f"{self.rate():,.0f}/s")

    def rate(self) -> float:
        """Return the number per second since the step began."""
        return self.done / max(1e-6, time.monotonic() - self._started)


@contextmanager
def count_progress(description: str) -> Iterator[CountProgress]:
    """Show a progress bar, which disappears at the end of the block."""
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
