"""`conveyor group describe`: the members of a group, their partitions and their lag."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from conveyor.cli.groups.group_lookup import (
    committed_offsets,
    describe_groups,
    display_name,
    group_exists,
    unknown_group_error,
)
from conveyor.cli.records.offsets import LogRange, Place, log_ranges
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    admin_client,
    cluster_metadata,
    counted,
)
from conveyor.cli.terminal.table import print_table


def describe(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")],
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a group's members and how far behind they are.

    Lag is the number of records left to read: the log end offset minus the committed offset.

    \b
    Examples:
      conveyor group describe billing
      conveyor group describe billing --json
    """
    admin = admin_client(bootstrap)
    if not group_exists(admin, name):
        raise unknown_group_error(name)
    group = describe_groups(admin, [name])[name]
    committed = committed_offsets(admin, name)
    readers = _readers(group.members)
    topics = cluster_metadata(admin, bootstrap).topics
    existing = [
        place for place in {**committed, **readers} if place[0] in topics and place[1] in topics[place[0]].partitions
    ]
    rows = _rows(committed, log_ranges(admin, existing), readers)
    total_lag = sum(row["lag"] or 0 for row in rows)
    if as_json:
        return typer.echo(json.dumps(_document(name, group, rows, total_lag)))
    _print(name, group, rows, total_lag)


def _readers(members: list[Any]) -> dict[Place, Any]:
    return {
        (partition.topic, partition.partition): member
        for member in members
        for partition in member.assignment.topic_partitions
    }


def _rows(
    committed: Mapping[Place, int], ranges: Mapping[Place, LogRange], readers: Mapping[Place, Any]
) -> list[dict[str, Any]]:
    rows = []
    for place in sorted({**committed, **readers}):
        offset, member = committed.get(place), readers.get(place)
        end = ranges[place].end if place in ranges else None
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed_offset": offset,
                "log_end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member": None if member is None else member.member_id,
                "host": None if member is None else _host(member),
            }
        )
    return rows


def _host(member: Any) -> str:
    return str(member.host).removeprefix("/")


def _document(name: str, group: Any, rows: list[dict[str, Any]], total_lag: int) -> dict[str, Any]:
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "instance": member.group_instance_id,
            "host": _host(member),
            "partitions": len(member.assignment.topic_partitions),
        }
        for member in group.members
    ]
    return {
        "group": name,
        "state": display_name(group.state),
        "type": display_name(group.type),
        "assignor": group.partition_assignor or None,
        "coordinator": None if group.coordinator is None else group.coordinator.id,
        "members": members,
        "partitions": rows,
        "total_lag": total_lag,
    }


def _print(name: str, group: Any, rows: list[dict[str, Any]], total_lag: int) -> None:
    assignor = f", assignor {group.partition_assignor}" if group.partition_assignor else ""
    typer.echo(f"group {name}: {display_name(group.state)}, {counted(len(group.members), 'member')}{assignor}")
    typer.echo()
    if rows:
        columns = ["topic", "partition", "committed", "log end", "lag", "member", "host"]
        print_table(columns, [list(row.values()) for row in rows])
        typer.echo()
    for member in group.members:
        if not member.assignment.topic_partitions:
            typer.echo(f"member {member.member_id} at {_host(member)} has no partitions")
    unknown = sum(row["lag"] is None for row in rows)
    typer.echo(f"total lag: {total_lag}" + (f", and {counted(unknown, 'partition')} of unknown lag" if unknown else ""))
