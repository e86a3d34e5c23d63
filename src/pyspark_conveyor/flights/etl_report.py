"""The picture of the second demonstration: where the flights went, and what the enriched ones say."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.flights.etl_run import EtlCounts

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_FEW = 100
_STEP_COLOUR, _REJECTED_COLOUR = "#3b6ea5", "#c0504d"


def delays_by_age_and_wind(lake: "DataFrame") -> tuple["pd.DataFrame", "pd.DataFrame"]:
    """Return mean departure delays in minutes from the enriched flights.

    By the year the plane was built in steps of five years, and by the wind in steps of 5 mph: each with columns
    `step` (number), `delay` (minutes) and `flights` (their number, at least 100).
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    flights = lake.select("payload.*").where("dep_delay IS NOT NULL")
    tables = []
    for column in (F.col("plane.year"), F.col("weather.wind_speed")):
        step = (F.floor(column / 5) * 5).alias("step")
        grouped = flights.groupBy(step).agg(F.avg("dep_delay").alias("delay"), F.count("*").alias("flights"))
        table = grouped.where("step IS NOT NULL").orderBy("step").toPandas()
        tables.append(table[table["flights"] >= _FEW])
    return tables[0], tables[1]


def draw_etl(counts: EtlCounts, lake: "DataFrame", to: Path) -> None:
    """Draw the numbers of flights after each step, the reasons of rejected ones, and two findings, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    by_year, by_wind = delays_by_age_and_wind(lake)
    figure, axes = plt.subplots(2, 2, figsize=(15, 8), layout="constrained")
    steps = {
        "extracted": counts.extracted,
        "clean": counts.clean,
        "enriched": counts.enriched,
        "in the lake": counts.loaded,
    }
    _bars(axes[0][0], steps, _STEP_COLOUR)
    axes[0][0].set_title("flights after each step", loc="left")
    _bars(axes[0][1], counts.rejected, _REJECTED_COLOUR)
    axes[0][1].set_title("dead letters, by reason", loc="left")
    _line(axes[1][0], by_year, "year the plane was built")
    _line(axes[1][1], by_wind, "wind at departure, mph")
    figure.suptitle("Extract, transform, enrich, load: flights from New York in 2013", x=0.01, ha="left", fontsize=15)
    figure.savefig(to, dpi=120)
    plt.close(figure)


def _bars(axes: Any, numbers: dict[str, int], colour: str) -> None:
    names = list(numbers)
    drawn = axes.barh(range(len(names)), list(numbers.values()), color=colour)
    axes.bar_label(drawn, labels=[f"{number:,}" for number in numbers.values()], padding=4)
    axes.set_yticks(range(len(names)), [name if len(name) <= 45 else f"{name[:44]}…" for name in names])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _line(axes: Any, table: "pd.DataFrame", label: str) -> None:
    axes.plot(table["step"], table["delay"], marker="o", color=_STEP_COLOUR)
    axes.set_xlabel(label)
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_ylim(bottom=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
