"""`conveyor group`: the commands list and delete. `group_describe` and `group_reset` have the others."""

import json
from typing import Annotated

import typer

from conveyor.cli.groups.group_describe import describe
from conveyor.cli.groups.group_lookup import (
    describe_groups,
    display_name,
    group_exists,
    list_groups,
    refuse_live_members,
    unknown_group_error,
)
from conveyor.cli.groups.group_reset import reset
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, Json, admin_client, answer, request_timeout
from conveyor.cli.terminal.table import print_table

app = typer.Typer(
    help="Inspect consumer groups, reset their offsets, delete them.\n\n"
    "A consumer group divides the partitions of its topics among its members and commits the offset at which\n"
    "reading continues in each partition.\n\n"
    "\b\nExamples:\n  conveyor group list\n  conveyor group describe billing",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def list_(as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the groups.

    The type is the protocol that the members speak: classic, or consumer (KIP-848).

    \b
    Example:
      conveyor group list
    """
    admin = admin_client(bootstrap)
    groups = list_groups(admin)
    described = describe_groups(admin, [group.group_id for group in groups])
    rows = [
        {
            "group": group.group_id,
            "state": display_name(group.state),
            "type": display_name(group.type),
            "members": len(described[group.group_id].members),
        }
        for group in groups
    ]
    if as_json:
        return typer.echo(json.dumps(rows))
    if not rows:
        return typer.echo("no groups yet: 'conveyor consume TOPIC --group NAME' creates one")
    print_table(list(rows[0]), [list(row.values()) for row in rows])


def delete(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group that has no members.

    Its committed offsets are deleted too; the records stay.

    \b
    Example:
      conveyor group delete billing
    """
    admin = admin_client(bootstrap)
    if not group_exists(admin, name):
        raise unknown_group_error(name)
    refuse_live_members(admin, name)
    answer(admin.delete_consumer_groups([name], **request_timeout())[name])
    typer.echo(f"deleted group {name}")


app.command("list")(list_)
for command in (describe, reset, delete):
    app.command()(command)
