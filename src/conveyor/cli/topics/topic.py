"""`conveyor topic`: the commands create, list and delete. The `topic_...` modules have the others."""

import json
from typing import Annotated

import typer

from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientError,
    Json,
    admin_client,
    answer,
    cluster_metadata,
    counted,
    named_value,
    partitions_option,
    request_timeout,
    require_topic,
)
from conveyor.cli.terminal.table import print_table
from conveyor.cli.topics.topic_alter import alter
from conveyor.cli.topics.topic_describe import describe
from conveyor.cli.topics.topic_stats import stats
from conveyor.cli.topics.topic_tail import tail

app = typer.Typer(
    help="Create, inspect, change and delete topics.\n\n"
    "\b\nExamples:\n  conveyor topic create orders --partitions 6\n  conveyor topic tail orders",
    no_args_is_help=True,
    rich_markup_mode=None,
)


_MOST_REPLICAS = 10_000
"""The client refuses more, as it does more than MOST_PARTITIONS partitions."""
_BROKERS_OWN = -1


def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name: letters, digits, '.', '_' and '-'.")],
    partitions: Annotated[
        int | None,
        partitions_option("Number of partitions; by default the broker's setting."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "-r",
            min=1,
            max=_MOST_REPLICAS,
            metavar="N",
            help="Replicas of each partition; by default the broker's setting.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting, such as segment.bytes=1048576."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic.

    \b
    Examples:
      conveyor topic create orders
      conveyor topic create orders --partitions 6 --replicas 3
      conveyor topic create orders --partitions 6 --config retention.ms=3600000
    """
    from confluent_kafka.admin import NewTopic

    settings = dict(named_value("--config", text, "segment.bytes=1048576") for text in config or [])
    admin = admin_client(bootstrap)
    counts = {"num_partitions": partitions or _BROKERS_OWN, "replication_factor": replicas or _BROKERS_OWN}
    try:
        new_topic = NewTopic(name, **counts, config=settings)
    except ValueError as error:
        raise ClientError(f"topic '{name}' cannot be created: {error}") from error
    answer(admin.create_topics([new_topic], **request_timeout())[name])
    topic = require_topic(admin, bootstrap, name)
    typer.echo(f"created topic {name} with {counted(len(topic.partitions), 'partition')}")


def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include the broker's internal topics.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List the topics.

    \b
    Example:
      conveyor topic list
    """
    all_topics = cluster_metadata(admin_client(bootstrap), bootstrap).topics.values()
    topics = sorted(
        (topic for topic in all_topics if internal or not topic.topic.startswith("__")), key=lambda topic: topic.topic
    )
    if as_json:
        return typer.echo(json.dumps([{"name": topic.topic, "partitions": len(topic.partitions)} for topic in topics]))
    if not topics:
        return typer.echo("no topics yet: create one with 'conveyor topic create NAME'")
    print_table(["topic", "partitions"], [[topic.topic, len(topic.partitions)] for topic in topics])


def delete(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic with all its records, its subscriptions and its schedules.

    \b
    Examples:
      conveyor topic delete orders
      conveyor topic delete orders --yes
    """
    admin = admin_client(bootstrap)
    partitions = counted(len(require_topic(admin, bootstrap, name).partitions), "partition")
    confirm(f"Delete topic {name}: {partitions}, with all records, subscriptions and schedules?", yes)
    answer(admin.delete_topics([name], **request_timeout())[name])
    typer.echo(f"deleted topic {name}")


app.command()(create)
app.command("list")(list_)
for command in (describe, stats, tail, alter, delete):
    app.command()(command)
