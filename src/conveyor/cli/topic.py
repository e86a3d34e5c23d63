"""`conveyor topic`: create, list, describe and delete topics."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from conveyor.cli.client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    Bootstrap,
    ClientError,
    client_config,
    cluster_metadata,
    require_topic,
)

app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The topic's name: letters, digits, '.', '_' and '-'.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="How many partitions; -1: the broker's default.")
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting, such as segment.bytes=1048576."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic."""
    from confluent_kafka.admin import NewTopic

    admin = _admin(bootstrap)
    settings = dict(map(_split, config or []))
    asked = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=settings)
    _settle(admin.create_topics([asked], request_timeout=TIMEOUT_S), name)
    made = require_topic(admin, bootstrap, name)
    typer.echo(f"created topic {name} with {_count(len(made.partitions), 'partition')}")


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Also the broker's own topics.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the topics."""
    found = cluster_metadata(_admin(bootstrap), bootstrap).topics.values()
    topics = sorted(
        (each for each in found if internal or not each.topic.startswith("__")), key=lambda each: each.topic
    )
    if as_json:
        return typer.echo(json.dumps([{"name": each.topic, "partitions": len(each.partitions)} for each in topics]))
    if not topics:
        return typer.echo("no topics yet: make one with 'conveyor topic create NAME'")
    _print_table(["topic", "partitions"], [[each.topic, len(each.partitions)] for each in topics])


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a topic's partitions: leader, replicas, first and next offset."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(client_config(bootstrap, **{"group.id": "conveyor-describe"}))
    topic = require_topic(consumer, bootstrap, name)
    rows = []
    for number, each in sorted(topic.partitions.items()):
        row = {"partition": number, "leader": each.leader, "replicas": each.replicas, "isr": each.isrs}
        try:
            first, following = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=TIMEOUT_S)
        except KafkaException as error:
            raise ClientError(f"partition {number} of '{name}' does not answer: {error.args[0].str()}") from error
        rows.append(row | {"first_offset": first, "next_offset": following, "records": following - first})
    consumer.close()
    if as_json:
        return typer.echo(json.dumps({"name": name, "partitions": rows}))
    _print_table([each.replace("_", " ") for each in rows[0]], [list(row.values()) for row in rows])


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic and all its records."""
    admin = _admin(bootstrap)
    require_topic(admin, bootstrap, name)
    _settle(admin.delete_topics([name], request_timeout=TIMEOUT_S), name)
    typer.echo(f"deleted topic {name}")


def _admin(bootstrap: str) -> Any:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_config(bootstrap))
    cluster_metadata(admin, bootstrap)
    return admin


def _settle(futures: dict[str, Any], name: str) -> None:
    from confluent_kafka import KafkaException

    try:
        futures[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise ClientError(error.args[0].str()) from error


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ClientError(f"--config {text}: it takes NAME=VALUE, such as segment.bytes=1048576")
    return name, value


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _print_table(columns: list[str], rows: Iterable[list[Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)
