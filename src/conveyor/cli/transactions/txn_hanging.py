"""`conveyor txn find-hanging`: transactions that no timeout ends."""

import json
import time
from typing import Annotated

import msgspec
import typer

from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, Json
from conveyor.cli.terminal.kafka_python import errors_of_kafka_python, kafka_python_admin
from conveyor.cli.terminal.table import print_table
from conveyor.cli.transactions.hanging_transactions import hanging
from conveyor.cli.transactions.transaction_lookup import topic_places

_LONGEST_MINUTES = 20
"""Five minutes more than the longest timeout of transactions, by default."""


def find_hanging(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="A topic; all by default.")] = None,
    older_than: Annotated[
        int, typer.Option(min=0, metavar="MINUTES", help="Find only those whose last batch is older.")
    ] = _LONGEST_MINUTES,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that are open in a partition, but unknown to their coordinator.

    Such a transaction never times out, and consumers of committed records do not read beyond it: abort it.

    \b
    Examples:
      conveyor txn find-hanging
      conveyor txn find-hanging orders --older-than 5
    """
    with kafka_python_admin(bootstrap) as admin, errors_of_kafka_python():
        found = hanging(admin, topic_places(admin, topic), int(time.time() * 1000) - older_than * 60_000)
    rows = [msgspec.to_builtins(transaction) for transaction in found]
    if as_json:
        return typer.echo(json.dumps(rows))
    if not rows:
        return typer.echo("no hanging transactions")
    columns = ["topic", "partition", "start_offset", "producer_id", "producer_epoch"]
    print_table([column.replace("_", " ") for column in columns], [[row[column] for column in columns] for row in rows])
    typer.echo("\nabort one with 'conveyor txn abort-hanging TOPIC PARTITION START-OFFSET'")
