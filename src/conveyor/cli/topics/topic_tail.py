"""`conveyor topic tail`: print the newest records of a topic, then follow it."""

from typing import Annotated

import typer

from conveyor.cli.records.consume import end_offsets, print_from
from conveyor.cli.records.offsets import clamp, log_ranges
from conveyor.cli.records.record_format import Format, ShowKey, record_writer
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    OnlyPartitions,
    admin_client,
    errors_in_one_line,
    require_partitions,
)


def tail(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, metavar="N", help="Number of records of each partition to begin with."),
    ] = 10,
    to_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end that each partition has now.")] = False,
    partition: OnlyPartitions = None,
    format_: Format = "text",
    key: ShowKey = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the last records of a topic, then new ones as they arrive.

    Prints the last records of each partition first. Stop with Ctrl-C.

    \b
    Examples:
      conveyor topic tail orders
      conveyor topic tail orders -n 3 --exit --format json
    """
    write = record_writer(format_, key)
    admin = admin_client(bootstrap)
    ranges = log_ranges(admin, [(name, number) for number in require_partitions(admin, bootstrap, name, partition)])
    starts = {place: clamp(held, held.end - lines) for place, held in ranges.items()}
    with errors_in_one_line():
        print_from(bootstrap, starts, write, None, end_offsets(ranges) if to_end else None)
