"""Draws the metrics: the traffic of each topic over time, and the lag of each consumer."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from conveyor.pipeline.jobs.topic_metrics import ConsumerNumbers

_SHOWN = 20


def draw_metrics(windows: Sequence[Any], consumers: Sequence[ConsumerNumbers], window_s: int, to: Path) -> None:
    """Draw a PNG. windows: the rows of `windows/`. A window without records is shown as 0."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (rates, lags) = plt.subplots(1, 2, figsize=(13, 5), width_ratios=[2, 1], layout="constrained")
    for topic in dict.fromkeys(row.topic for row in windows):
        times, values = _series([row for row in windows if row.topic == topic], window_s)
        rates.step(times, values, where="post", label=topic)
    rates.set_title(f"records per second, in windows of {window_s} s (UTC)", loc="left")
    rates.set_ylim(bottom=0)
    rates.tick_params(axis="x", rotation=30)
    if windows:
        rates.legend(frameon=False)
    shown = sorted(consumers, key=lambda each: each.lag, reverse=True)[:_SHOWN]
    names = [f"{each.consumer}\n{each.kind} of {each.topic}" for each in shown]
    bars = lags.barh(names, [each.lag for each in shown], color="#4c78a8")
    lags.bar_label(bars, [f"{each.lag:,}" for each in shown], padding=3)
    lags.margins(x=0.2)
    lags.invert_yaxis()
    lags.set_title("lag, in records or messages", loc="left")
    for axes in (rates, lags):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, dpi=120)
    plt.close(figure)


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
