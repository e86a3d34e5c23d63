"""`conveyor txn`: the commands list and describe. `txn_abort` and `txn_hanging` have the others."""

import json
import time
from typing import Annotated, Any

import typer

from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError, Json
from conveyor.cli.terminal.kafka_python import errors_of_kafka_python, kafka_python_admin
from conveyor.cli.terminal.table import print_table
from conveyor.cli.transactions.transaction_lookup import described_transaction
from conveyor.cli.transactions.txn_abort import abort, abort_hanging
from conveyor.cli.transactions.txn_hanging import find_hanging
from conveyor.transactions.transaction_value import NO_TIMEOUT_MS, TransactionState

app = typer.Typer(
    help="Inspect and abort transactions.\n\n"
    "The coordinator of a transactional id aborts a transaction that takes longer than its timeout.\n\n"
    "\b\nExamples:\n  conveyor txn list --state Ongoing\n  conveyor txn describe transfers",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_STATES = [state.kafka_name for state in TransactionState]


def list_(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help=f"List only ids in this state: {', '.join(_STATES)}."),
    ] = None,
    open_longer_than: Annotated[
        int | None,
        typer.Option(min=0, max=1_000_000_000, metavar="SECONDS", help="List only transactions that began longer ago."),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the transactional ids.

    \b
    Examples:
      conveyor txn list
      conveyor txn list --open-longer-than 60
    """
    for state in states or []:
        if state not in _STATES:
            raise ClientError(f"--state {state}: expected one of {', '.join(_STATES)}")
    duration_ms = None if open_longer_than is None else open_longer_than * 1000
    with kafka_python_admin(bootstrap) as admin, errors_of_kafka_python():
        listed = admin.list_transactions(state_filters=states, duration_filter_ms=duration_ms)
    rows: list[dict[str, Any]] = [
        {
            "transactional_id": transaction.transactional_id,
            "state": transaction.state.value,
            "producer_id": transaction.producer_id,
            "coordinator": coordinator,
        }
        for coordinator, transactions in listed.items()
        for transaction in transactions
    ]
    rows.sort(key=lambda row: str(row["transactional_id"]))
    if as_json:
        return typer.echo(json.dumps(rows))
    if not rows:
        return typer.echo("no transactional ids" + (" match" if states or duration_ms is not None else ""))
    print_table(["transactional id", "state", "producer id", "coordinator"], [list(row.values()) for row in rows])


def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")],
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the state of a transactional id, and the partitions of its transaction.

    \b
    Example:
      conveyor txn describe transfers
    """
    with kafka_python_admin(bootstrap) as admin:
        found = described_transaction(admin, transactional_id)
    start_ms = found.transaction_start_time_ms
    document = {
        "transactional_id": transactional_id,
        "state": found.state.value,
        "coordinator": found.coordinator_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": None if found.transaction_timeout_ms == NO_TIMEOUT_MS else found.transaction_timeout_ms,
        "open_ms": None if start_ms < 0 else max(0, int(time.time() * 1000) - start_ms),
        "partitions": [[place.topic, place.partition] for place in sorted(found.topic_partitions)],
    }
    if as_json:
        return typer.echo(json.dumps(document))
    _print(document)


def _print(document: dict[str, Any]) -> None:
    producer = f"producer {document['producer_id']}, epoch {document['producer_epoch']}"
    timeout_ms, open_ms = document["timeout_ms"], document["open_ms"]
    timeout = "no timeout (two-phase commit)" if timeout_ms is None else f"timeout {timeout_ms / 1000:g} s"
    typer.echo(f"transactional id {document['transactional_id']}: {document['state']}")
    typer.echo(f"{producer}, {timeout}, coordinator {document['coordinator']}")
    if open_ms is not None:
        typer.echo(f"open for {open_ms / 1000:.1f} s")
    if document["partitions"]:
        typer.echo()
        print_table(["topic", "partition"], document["partitions"])


app.command("list")(list_)
for command in (describe, abort, find_hanging, abort_hanging):
    app.command()(command)
