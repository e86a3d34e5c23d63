"""`conveyor topic describe`: a topic's partitions and settings."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.records.offsets import LogRange, log_ranges
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, Json, admin_client, require_topic
from conveyor.cli.terminal.table import print_table
from conveyor.cli.topics.described_settings import TopicSetting, topic_settings

_NO_LEADER = -1


def describe(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    all_config: Annotated[
        bool, typer.Option("--all-config", help="Show every setting, not only those that differ from the default.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a topic's partitions and settings.

    Lists for each partition the leader, the replicas, the in-sync replicas (isr), the offset of the first record (log
    start) and the offset of the next one (log end), then the settings that differ from their defaults. A partition
    without a leader shows no offsets.

    \b
    Examples:
      conveyor topic describe orders
      conveyor topic describe orders --all-config
    """
    admin = admin_client(bootstrap)
    partitions = _partitions(admin, name, require_topic(admin, bootstrap, name))
    settings = topic_settings(admin, name)
    shown = {key: setting for key, setting in settings.items() if all_config or setting.source != "default"}
    if as_json:
        config = {key: {"value": setting.value, "source": setting.source} for key, setting in shown.items()}
        return typer.echo(json.dumps({"name": name, "partitions": partitions, "config": config}))
    _print_partitions(partitions)
    typer.echo()
    _print_settings(shown)


def _partitions(admin: Any, name: str, topic: Any) -> list[dict[str, Any]]:
    led = [(name, number) for number, partition in topic.partitions.items() if partition.leader != _NO_LEADER]
    ranges = log_ranges(admin, led)
    return [
        _described(number, partition, ranges.get((name, number)))
        for number, partition in sorted(topic.partitions.items())
    ]


def _described(number: int, partition: Any, offsets: LogRange | None) -> dict[str, Any]:
    return {
        "partition": number,
        "leader": None if partition.leader == _NO_LEADER else partition.leader,
        "replicas": partition.replicas,
        "isr": partition.isrs,
        "log_start_offset": None if offsets is None else offsets.start,
        "log_end_offset": None if offsets is None else offsets.end,
        "records": None if offsets is None else offsets.end - offsets.start,
    }


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    columns = ["partition", "leader", "replicas", "isr", "log start", "log end", "records"]
    rows = [[_listed(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in partitions]
    print_table(columns, rows)


def _listed(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


def _print_settings(settings: dict[str, TopicSetting]) -> None:
    if not settings:
        return typer.echo("every setting has its default value: --all-config lists them")
    print_table(
        ["setting", "value", "source"], [[key, setting.value, setting.source] for key, setting in settings.items()]
    )
