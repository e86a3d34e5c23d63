"""Draws the metrics: the traffic of each topic and the delays of each subscription over time, and the lag of each
consumer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers

_SHOWN = 20
_SHOWN_DELAYS = 8
_TICKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
_TICK_LABELS = ("1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "1 d")
_SINGLE_RUN = timedelta(minutes=1)


def draw_metrics(
    windows: Sequence[Any],
    consumers: Sequence[ConsumerNumbers],
    delays: Sequence[ConsumerNumbers],
    window_s: int,
    to: Path,
) -> None:
    """Draw a PNG. windows: the rows of `windows/`. A window without records is shown as 0. delays: the numbers of
    subscriptions, of this run and earlier ones, by time.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    has_delays = any(numbers.delay_acks for numbers in delays)
    figure = plt.figure(figsize=(13, 9 if has_delays else 5), layout="constrained")
    grid = figure.add_gridspec(1 + has_delays, 2, width_ratios=[2, 1])
    _draw_rates(figure.add_subplot(grid[0, 0]), windows, window_s)
    _draw_lags(figure.add_subplot(grid[:, 1]), consumers)
    if has_delays:
        _draw_delays(figure.add_subplot(grid[1, 0]), delays)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, dpi=120)
    plt.close(figure)


def _draw_rates(axes: Any, windows: Sequence[Any], window_s: int) -> None:
    for topic in dict.fromkeys(row.topic for row in windows):
        times, values = _series([row for row in windows if row.topic == topic], window_s)
        axes.step(times, values, where="post", label=topic)
    axes.set_title(f"records per second, in windows of {window_s} s (UTC)", loc="left")
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", rotation=30)
    if windows:
        axes.legend(frameon=False)


def _draw_lags(axes: Any, consumers: Sequence[ConsumerNumbers]) -> None:
    shown = sorted(consumers, key=lambda each: each.lag, reverse=True)[:_SHOWN]
    names = [f"{each.consumer}\n{each.kind} of {each.topic}" for each in shown]
    bars = axes.barh(names, [each.lag for each in shown], color="#4c78a8")
    axes.bar_label(bars, [f"{each.lag:,}" for each in shown], padding=3)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set_title("lag, in records or messages", loc="left")


def _draw_delays(axes: Any, delays: Sequence[ConsumerNumbers]) -> None:
    """Draw the delays of the subscriptions with the most acks: at each run those since the run before it."""
    acks: dict[tuple[str, str], int] = {}
    for numbers in delays:
        consumer = numbers.topic, numbers.consumer
        acks[consumer] = acks.get(consumer, 0) + (numbers.delay_acks or 0)
    for topic, name in sorted(acks, key=lambda consumer: acks[consumer], reverse=True)[:_SHOWN_DELAYS]:
        # A run without acks interrupts the lines. Delays of 0 have no place on a logarithmic axis.
        rows = [numbers for numbers in delays if (numbers.topic, numbers.consumer) == (topic, name)]
        means, medians, lates = (
            [None if ms is None else max(ms, 1) for ms in values]
            for values in (
                [row.delay_mean_ms for row in rows],
                [row.delay_p50_ms for row in rows],
                [row.delay_p99_ms for row in rows],
            )
        )
        times = [row.at for row in rows]
        (line,) = axes.plot(times, means, "o", label=f"{name} of {topic}", markersize=5)
        axes.plot(times, medians, "_-", color=line.get_color(), markersize=9)
        axes.plot(times, lates, "_--", color=line.get_color(), markersize=9)
    if len({numbers.at for numbers in delays}) == 1:
        axes.set_xlim(delays[0].at - _SINGLE_RUN, delays[0].at + _SINGLE_RUN)
    _show_durations(axes)
    axes.set_title("publish to ack, since the run before (UTC): mean (dots), p50 (line), p99 (dashes)", loc="left")
    axes.tick_params(axis="x", rotation=30)
    axes.legend(frameon=False)


def _show_durations(axes: Any) -> None:
    """Make the vertical axis one of durations, from a tick below all values to one above them."""
    low_ms, high_ms = axes.dataLim.intervaly
    first = max(0, bisect_right(_TICKS_MS, low_ms) - 1)
    last = min(len(_TICKS_MS) - 1, bisect_right(_TICKS_MS, high_ms))
    axes.set_yscale("log")
    axes.set_yticks(_TICKS_MS[first : last + 1], _TICK_LABELS[first : last + 1])
    axes.set_yticks([], minor=True)
    axes.set_ylim(_TICKS_MS[first], max(high_ms, _TICKS_MS[last]))


def _series(rows: Sequence[Any], window_s: int) -> tuple[list[Any], list[float]]:
    """Return the edges of steps of a topic's rows, with a step to 0 where windows are missing and at the end."""
    times, values = [], []
    end = None
    for row in rows:
        # Spark returns times in the zone of this machine, without a zone.
        start = row.start.astimezone(UTC)
        if end is not None and start > end:
            times.append(end)
            values.append(0.0)
        times.append(start)
        values.append(row.records_per_s)
        end = start + timedelta(seconds=window_s)
    return [*times, end], [*values, 0.0]
