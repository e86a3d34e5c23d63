"""A report on the flights in the lake: delays by carrier and hour of day, and by weather."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.flights.flight_events import FLIGHTS, WEATHER

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_FLIGHT = (
    "carrier string, origin string, dest string, tailnum string, dep_delay double, hour int, distance double,"
    " time_hour string"
)
_WEATHER = "origin string, time_hour string, wind_speed double, precip double, visib double, temp double"
HOURS = range(5, 24)
CONDITIONS = ("clear", "wind above 20 mph", "rain or snow", "visibility below 2 miles")
_BUSY = 100


@dataclass(frozen=True, slots=True)
class Delays:
    """Mean departure delays in minutes.

    by_hour: rows are carriers, columns hours of the scheduled departure, NaN for fewer than 100 flights.
    by_weather: rows are carriers, columns the weather at the airport in that hour.
    flights: the number of flights of each carrier.
    """

    by_hour: "pd.DataFrame"
    by_weather: "pd.DataFrame"
    flights: dict[str, int]


def delays(lake: "DataFrame") -> Delays:
    """Compute the delays from the lake. Cancelled flights have no delay and do not count."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    flights = _parsed(lake, FLIGHTS, _FLIGHT).where("dep_delay is not null")
    weather = F.broadcast(_parsed(lake, WEATHER, _WEATHER))
    joined = flights.join(weather, ["origin", "time_hour"], "left").withColumn("condition", _condition()).cache()
    hourly = joined.groupBy("carrier", "hour").agg(F.avg("dep_delay").alias("delay"), F.count("*").alias("flights"))
    by_condition = joined.groupBy("carrier", "condition").agg(
        F.avg("dep_delay").alias("delay"), F.count("*").alias("flights")
    )
    result = _pivoted(hourly.toPandas(), by_condition.toPandas())
    joined.unpersist()
    return result


def _parsed(lake: "DataFrame", topic: str, schema: str) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    rows = lake.where(F.col("topic") == topic)
    return rows.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")


def _condition() -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    clear, wind, rain, fog = CONDITIONS
    return (
        F.when(F.col("visib").isNull(), None)
        .when(F.col("visib") < 2, fog)
        .when(F.col("precip") > 0, rain)
        .when(F.col("wind_speed") > 20, wind)
        .otherwise(clear)
    )


def _pivoted(hourly: "pd.DataFrame", by_condition: "pd.DataFrame") -> Delays:
    counted = hourly.groupby("carrier")["flights"].sum().sort_values(ascending=False)
    busy = hourly[hourly["flights"] >= _BUSY]
    carriers = [carrier for carrier in counted.index if carrier in set(busy["carrier"])]
    by_hour = busy.pivot(index="carrier", columns="hour", values="delay")
    enough = by_condition[by_condition["flights"] >= _BUSY].dropna(subset=["condition"])
    by_weather = enough.pivot(index="carrier", columns="condition", values="delay")
    return Delays(
        by_hour.reindex(index=carriers, columns=list(HOURS)),
        by_weather.reindex(index=carriers, columns=list(CONDITIONS)),
        {str(carrier): int(count) for carrier, count in counted.items()},
    )


def draw(result: Delays, to: Path) -> None:
    """Draw both tables as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 7), width_ratios=[3.2, 1], layout="constrained")
    most = float(result.by_hour.max().max())
    image = _heat_map(left, result.by_hour, most, [f"{hour}" for hour in HOURS])
    left.set_title("by hour of the scheduled departure", loc="left")
    left.set_xlabel("hour of day, New York")
    _heat_map(right, result.by_weather, most, [condition.replace(" ", "\n") for condition in CONDITIONS])
    right.set_title("by weather at the airport", loc="left")
    figure.colorbar(image, ax=[left, right], label="mean departure delay, minutes", shrink=0.8, pad=0.01)
    count = sum(result.flights.values())
    figure.suptitle(
        f"Departure delays of {count:,} flights from New York in 2013, by carrier", x=0.01, ha="left", fontsize=15
    )
    figure.savefig(to, dpi=120)
    plt.close(figure)


def _heat_map(axes: Any, table: "pd.DataFrame", most: float, labels: list[str]) -> Any:
    import matplotlib as mpl

    colours = mpl.colormaps["YlOrRd"].with_extremes(bad="#eeeeee")
    image = axes.imshow(table.to_numpy(), cmap=colours, vmin=0, vmax=most, aspect="auto")
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(table.index)), table.index)
    axes.tick_params(length=0)
    for row, carrier in enumerate(table.index):
        for column, delay in enumerate(table.loc[carrier]):
            if not math.isnan(delay):
                shade = "white" if delay > most * 0.6 else "#333333"
                axes.text(column, row, f"{round(delay)}", ha="center", va="center", color=shade, fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    return image
