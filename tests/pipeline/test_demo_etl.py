"""The second demonstration, with some thousand flights: every one is in the lake or in the dead-letter topic, once."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conveyor.cli.demo_etl import run_etl
from conveyor.testing import Broker
from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.flights.raw_events import BROKEN_EVERY
from tests.pipeline.topics import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3_000
BROKEN = FLIGHTS // BROKEN_EVERY


def test_the_counts_balance(
    spark: "SparkSession", broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_etl(tmp_path, Brokers(bootstrap_servers=broker.bootstrap_servers), 1, flights=FLIGHTS)
    printed = capsys.readouterr().out
    assert f"{FLIGHTS:,} extracted = {FLIGHTS - BROKEN:,} loaded + {BROKEN} broken" in printed
    for reason in ("the carrier is missing", "the distance is not positive", "truncated", "Expected `float | null`"):
        assert reason in printed
    assert (tmp_path / "etl.png").read_bytes().startswith(b"\x89PNG")
    letters = read(spark, broker, "flights-rejected").collect()
    headers = [{header.key: header.value for header in letter.headers} for letter in letters]
    sequences = sorted(int(each["sequence"]) for each in headers)
    assert all((later - earlier) % BROKEN_EVERY == 0 for earlier, later in itertools.pairwise(sequences))
    assert {each["conveyor-dead-topic"] for each in headers} == {b"flights-raw"}
