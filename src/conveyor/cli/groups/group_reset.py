"""`conveyor group reset`: move the committed offsets of a group."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from conveyor.cli.groups.group_lookup import (
    committed_offsets,
    group_exists,
    live_members_error,
    refuse_live_members,
    unknown_group_error,
)
from conveyor.cli.records.offsets import LogRange, Place, clamp, find_offsets, log_ranges
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientError,
    admin_client,
    answer,
    counted,
    request_timeout,
    require_partitions,
)
from conveyor.cli.terminal.position import METAVAR, parse_position
from conveyor.cli.terminal.table import print_table


def reset(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")],
    to: Annotated[str | None, typer.Option(metavar=METAVAR, help="Where the group continues.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Skip this many records; negative: go back.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[:P,...]", help="Only this topic, or these partitions of it; can be repeated."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Move the offsets; without this option, only show the plan.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move the offsets at which a group continues.

    Shows the old and the new offsets and, with --execute, commits the new ones. Without --topic, moves every partition
    for which the group has committed an offset. An offset outside the log becomes the nearest offset inside it. The
    group must have no members: stop its consumers first.

    TIME is a date and time, in local time unless it names a zone (2026-11-21T08:00, 2026-11-21T08:00Z), or how long ago
    (-90s, -15m, -2h, -3d).

    \b
    Examples:
      conveyor group reset billing --to earliest
      conveyor group reset billing --to -2h --topic orders --execute
      conveyor group reset billing --shift-by -1 --topic orders:0,3 --execute
    """
    if (to is None) == (shift_by is None):
        raise ClientError("the new position is missing or ambiguous: give either --to or --shift-by")
    position = None if to is None else parse_position("--to", to)
    admin = admin_client(bootstrap)
    if group_exists(admin, name):
        refuse_live_members(admin, name)
    elif topic:
        typer.echo(f"group {name} does not exist yet: --execute creates it", err=True)
    else:
        raise unknown_group_error(name)
    committed = committed_offsets(admin, name)
    ranges = log_ranges(admin, _places(admin, bootstrap, topic, committed))
    if position is not None:
        moved = find_offsets(admin, position, ranges)
    else:
        moved = _shifted(name, committed, ranges, shift_by or 0)
    _print(committed, moved)
    if not execute:
        return typer.echo("nothing has been changed: add --execute to move the offsets", err=True)
    _commit(admin, name, moved)
    typer.echo(f"group {name}: moved {counted(len(moved), 'partition')}", err=True)


def _places(admin: Any, bootstrap: str, topics: list[str] | None, committed: Mapping[Place, int]) -> list[Place]:
    if not topics:
        if not committed:
            raise ClientError("the group has committed no offsets: name the topics with --topic")
        return list(committed)
    places: dict[Place, None] = {}
    for text in topics:
        topic, wanted = _topic_and_partitions(text)
        places |= dict.fromkeys((topic, number) for number in require_partitions(admin, bootstrap, topic, wanted))
    return list(places)


def _topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """Parse `orders` or `orders:0,3`. Raises ClientError."""
    topic, separator, numbers = text.partition(":")
    if not separator:
        return topic, None
    if not all(number.isascii() and number.isdecimal() for number in numbers.split(",")):
        raise ClientError(f"--topic {text}: expected TOPIC or TOPIC:PARTITION,..., such as orders:0,3")
    return topic, [int(number) for number in numbers.split(",")]


def _shifted(group: str, committed: Mapping[Place, int], ranges: Mapping[Place, LogRange], by: int) -> dict[Place, int]:
    for topic, partition in ranges.keys() - committed.keys():
        raise ClientError(
            f"group '{group}' has no committed offset in partition {partition} of '{topic}' to shift: use --to"
        )
    return {place: clamp(held, committed[place] + by) for place, held in ranges.items()}


def _print(committed: Mapping[Place, int], moved: Mapping[Place, int]) -> None:
    rows = [
        [*place, committed.get(place), offset, offset - committed[place] if place in committed else None]
        for place, offset in sorted(moved.items())
    ]
    print_table(["topic", "partition", "old", "new", "change"], rows)


def _commit(admin: Any, group: str, offsets: Mapping[Place, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

    wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    request = [ConsumerGroupTopicPartitions(group, wanted)]
    done = answer(admin.alter_consumer_group_offsets(request, **request_timeout())[group])
    for partition in done.topic_partitions:
        if partition.error is not None and partition.error.code() == KafkaError.UNKNOWN_MEMBER_ID:
            raise live_members_error(group)
        if partition.error is not None:
            raise ClientError(
                f"partition {partition.partition} of '{partition.topic}' was not moved: {partition.error.str()}"
            )
