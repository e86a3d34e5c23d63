"""`conveyor topic stats`: count a topic's records and measure the rate at which they arrive."""

import json
import time
from typing import Annotated, Any

import typer

from conveyor.cli.records.offsets import Place, list_offsets, log_ranges
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, Json, admin_client, require_partitions
from conveyor.cli.terminal.position import iso_time
from conveyor.cli.terminal.table import Cell, print_table


def stats(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-i",
            min=0,
            max=86_400,
            metavar="SECONDS",
            help="Seconds over which to measure the rate; 0: no rate.",
        ),
    ] = 1.0,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Count a topic's records and measure how fast they arrive.

    Lists for each partition the number of records, the offset of the first record (log start) and of the next one (log
    end), the timestamp of the newest record, and the records that arrive per second. The count is the difference of the
    two offsets, so it includes records that compaction has removed.

    \b
    Examples:
      conveyor topic stats orders
      conveyor topic stats orders --interval 10
    """
    admin = admin_client(bootstrap)
    places = [(name, number) for number in require_partitions(admin, bootstrap, name, None)]
    rates = _rates(admin, places, interval) if interval else {}
    rows = _rows(admin, places, rates)
    total = {"records": sum(row["records"] for row in rows), "records_per_second": sum(rates.values())}
    if not interval:
        del total["records_per_second"]
    if as_json:
        return typer.echo(json.dumps({"name": name, "partitions": rows} | total))
    columns = ["partition", "records", "log start", "log end", "newest"] + (["records/s"] if interval else [])
    shown: list[list[Cell]] = [[_shown(key, cell) for key, cell in row.items()] for row in rows]
    print_table(columns, shown)
    rate = f", {total['records_per_second']:.1f} a second" if interval else ""
    typer.echo(f"total: {total['records']} records{rate}")


def _rates(admin: Any, places: list[Place], interval: float) -> dict[Place, float]:
    from confluent_kafka.admin import OffsetSpec

    before, began = list_offsets(admin, places, OffsetSpec.latest()), time.monotonic()
    time.sleep(interval)
    after, ended = list_offsets(admin, places, OffsetSpec.latest()), time.monotonic()
    return {place: round((after[place].offset - before[place].offset) / (ended - began), 1) for place in places}


def _rows(admin: Any, places: list[Place], rates: dict[Place, float]) -> list[dict[str, Any]]:
    from confluent_kafka.admin import OffsetSpec

    ranges = log_ranges(admin, places)
    newest = list_offsets(admin, places, OffsetSpec.max_timestamp())
    return [
        {
            "partition": place[1],
            "records": ranges[place].end - ranges[place].start,
            "log_start_offset": ranges[place].start,
            "log_end_offset": ranges[place].end,
            "newest_timestamp": newest[place].timestamp if newest[place].timestamp >= 0 else None,
        }
        | ({"records_per_second": rates[place]} if rates else {})
        for place in places
    ]


def _shown(key: str, cell: Any) -> Cell:
    if key == "newest_timestamp" and cell is not None:
        return iso_time(cell)
    shown: Cell = cell
    return shown
