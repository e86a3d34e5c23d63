"""`conveyor topic alter`: add partitions, change settings."""

from typing import Annotated, Any

import typer

from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientError,
    admin_client,
    answer,
    named_value,
    partitions_option,
    request_timeout,
    require_topic,
)
from conveyor.cli.topics.described_settings import TopicSetting, topic_settings


def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partitions: Annotated[
        int | None,
        partitions_option("New number of partitions; it can only grow."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; can be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to reset to its default; can be repeated.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a topic's partitions or settings.

    The topic stays available. Either all of the changes are made or none. With more partitions, later records of a key
    may go to another partition; existing records stay where they are.

    \b
    Examples:
      conveyor topic alter orders --partitions 12
      conveyor topic alter orders --config retention.ms=3600000 --unset segment.bytes
    """
    values = dict(named_value("--config", text, "retention.ms=3600000") for text in config or [])
    if partitions is None and not values and not unset:
        raise ClientError("nothing to alter: give --partitions, --config or --unset")
    if both := set(values) & set(unset or []):
        raise ClientError(f"--config and --unset both name '{min(both)}': give only one of them")
    admin = admin_client(bootstrap)
    had = len(require_topic(admin, bootstrap, name).partitions)
    before = topic_settings(admin, name)
    if unknown := set(unset or []) - before.keys():
        raise ClientError(f"unknown topic setting '{min(unknown)}'")
    for check_only in (True, False):
        _change(admin, name, partitions, values, unset or [], check_only=check_only)
    if partitions is not None:
        typer.echo(f"topic {name}: {partitions} partitions (had {had})")
    _report(name, before, topic_settings(admin, name), [*values, *(unset or [])])


def _change(
    admin: Any, name: str, partitions: int | None, values: dict[str, str], unset: list[str], *, check_only: bool
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

    entries = [ConfigEntry(key, text, incremental_operation=AlterConfigOpType.SET) for key, text in values.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in dict.fromkeys(unset)]
    how: dict[str, Any] = request_timeout() | {"validate_only": check_only}
    if entries:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        answer(admin.incremental_alter_configs([resource], **how)[resource])
    if partitions is not None:
        answer(admin.create_partitions([NewPartitions(name, partitions)], **how)[name])


def _report(name: str, before: dict[str, TopicSetting], after: dict[str, TopicSetting], changed: list[str]) -> None:
    for key in dict.fromkeys(changed):
        default = "" if after[key].source == "topic" else ", the default"
        typer.echo(f"topic {name}: {key} = {after[key].value}{default} (was {before[key].value})")
