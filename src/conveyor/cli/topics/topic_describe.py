"""`conveyor topic describe`: a topic's partitions and settings."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.records.offsets import log_ranges
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, Json, admin_client, require_topic
from conveyor.cli.terminal.table import print_table
from conveyor.cli.topics.described_settings import TopicSetting, topic_settings


def describe(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    all_config: Annotated[
        bool, typer.Option("--all-config", help="Every setting, not only those that differ from the default.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a topic's partitions and settings.

    Only settings that differ from the default are shown. Of a partition: the leader, the replicas, which of them are in
    sync (isr), the offset of its first record (log start) and of its next one (log end).

    \b
    Examples:
      conveyor topic describe orders
      conveyor topic describe orders --all-config
    """
    admin = admin_client(bootstrap)
    partitions = _partitions(admin, name, require_topic(admin, bootstrap, name))
    settings = topic_settings(admin, name)
    shown = {key: each for key, each in settings.items() if all_config or each.source != "default"}
    if as_json:
        config = {key: {"value": each.value, "source": each.source} for key, each in shown.items()}
        return typer.echo(json.dumps({"name": name, "partitions": partitions, "config": config}))
    _print_partitions(partitions)
    typer.echo()
    _print_settings(shown)


def _partitions(admin: Any, name: str, topic: Any) -> list[dict[str, Any]]:
    held = log_ranges(admin, [(name, number) for number in topic.partitions])
    return [
        {
            "partition": number,
            "leader": each.leader,
            "replicas": each.replicas,
            "isr": each.isrs,
            "log_start_offset": held[name, number].start,
            "log_end_offset": held[name, number].end,
            "records": held[name, number].end - held[name, number].start,
        }
        for number, each in sorted(topic.partitions.items())
    ]


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    columns = ["partition", "leader", "replicas", "isr", "log start", "log end", "records"]
    rows = [[_listed(each) if isinstance(each, list) else each for each in row.values()] for row in partitions]
    print_table(columns, rows)


def _listed(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))


def _print_settings(settings: dict[str, TopicSetting]) -> None:
    if not settings:
        return typer.echo("every setting has its default: --all-config shows them")
    print_table(["setting", "value", "source"], [[key, each.value, each.source] for key, each in settings.items()])
