"""`conveyor group describe`: who reads what, and how far behind."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from conveyor.cli.groups.group_lookup import committed_offsets, described_groups, is_there, plain, unknown_group
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
    """Show how far behind a group is, and its members.

    Lag is how many records are left to read: the end of the log less the offset that the group has committed.

    \b
    Examples:
      conveyor group describe billing
      conveyor group describe billing --json
    """
    admin = admin_client(bootstrap)
    if not is_there(admin, name):
        raise unknown_group(name)
    group = described_groups(admin, [name])[name]
    committed = committed_offsets(admin, name)
    readers = _readers(group.members)
    there = cluster_metadata(admin, bootstrap).topics
    known = [
        place for place in {**committed, **readers} if place[0] in there and place[1] in there[place[0]].partitions
    ]
    rows = _rows(committed, log_ranges(admin, known), readers)
    total_lag = sum(row["lag"] or 0 for row in rows)
    if as_json:
        return typer.echo(json.dumps(_document(name, group, rows, total_lag)))
    _print(name, group, rows, total_lag)


def _readers(members: list[Any]) -> dict[Place, Any]:
    """Which member reads a partition."""
    return {(each.topic, each.partition): member for member in members for each in member.assignment.topic_partitions}


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
            "member": each.member_id,
            "client": each.client_id,
            "instance": each.group_instance_id,
            "host": _host(each),
            "partitions": len(each.assignment.topic_partitions),
        }
        for each in group.members
    ]
    return {
        "group": name,
        "state": plain(group.state),
        "type": plain(group.type),
        "assignor": group.partition_assignor or None,
        "coordinator": None if group.coordinator is None else group.coordinator.id,
        "members": members,
        "partitions": rows,
        "total_lag": total_lag,
    }


def _print(name: str, group: Any, rows: list[dict[str, Any]], total_lag: int) -> None:
    assignor = f", assignor {group.partition_assignor}" if group.partition_assignor else ""
    typer.echo(f"group {name}: {plain(group.state)}, {counted(len(group.members), 'member')}{assignor}")
    typer.echo()
    if rows:
        columns = ["topic", "partition", "committed", "log end", "lag", "member", "host"]
        print_table(columns, [list(row.values()) for row in rows])
        typer.echo()
    for each in group.members:
        if not each.assignment.topic_partitions:
            typer.echo(f"member {each.member_id} at {_host(each)} has no partitions")
    unknown = sum(row["lag"] is None for row in rows)
    typer.echo(f"total lag: {total_lag}" + (f", and {counted(unknown, 'partition')} of unknown lag" if unknown else ""))
