"""`conveyor user`: the users who log in at listeners with SASL. A password is read, and never shown, kept or sent."""

import json
import secrets
import sys
from getpass import getpass
from typing import Annotated, Any

import typer

from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientError,
    Json,
    admin_client,
    answer,
    request_timeout,
)
from conveyor.cli.terminal.table import print_table
from conveyor.kernel.access.scram import MIN_ITERATIONS, SALT_BYTES

app = typer.Typer(
    help="Add, list and remove users, and change their passwords.\n\n"
    "Users log in at listeners with SASL: `conveyor serve --kafka SASL_SSL://0.0.0.0:9093`, with SCRAM or PLAIN.\n\n"
    "\b\nExamples:\n  conveyor user add alice\n  conveyor user password alice < password-file",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]


def add(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Add a user.

    The password is asked for, or is the first line of the standard input.
    """
    admin = admin_client(bootstrap)
    if name in _users(admin):
        raise ClientError(f"user '{name}' exists: change the password with 'conveyor user password {name}'")
    _set_password(admin, name)
    typer.echo(f"added user {name}")


def password(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Change the password of a user, whose open connections are closed.

    The password is asked for, or is the first line of the standard input.
    """
    admin = admin_client(bootstrap)
    _require(admin, name)
    _set_password(admin, name)
    typer.echo(f"changed the password of {name}")


def list_(as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the users, and how they can log in."""
    users = _users(admin_client(bootstrap))
    rows = [{"user": name, "mechanisms": [info[0] for info in infos]} for name, infos in sorted(users.items())]
    if as_json:
        return typer.echo(json.dumps(rows))
    if not rows:
        return typer.echo("no users yet: add one with 'conveyor user add NAME'")
    print_table(["user", "mechanisms"], [[str(row["user"]), ", ".join(row["mechanisms"])] for row in rows])


def remove(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Remove a user, whose open connections are closed."""
    from confluent_kafka.admin import UserScramCredentialDeletion

    admin = admin_client(bootstrap)
    deletions = [UserScramCredentialDeletion(name, mechanism) for _, mechanism in _require(admin, name)]
    answer(admin.alter_user_scram_credentials(deletions, **request_timeout())[name])
    typer.echo(f"removed user {name}")


for function, command in ((add, "add"), (list_, "list"), (password, "password"), (remove, "remove")):
    app.command(command)(function)


def _users(admin: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return the mechanisms of each user, by name and as the client knows them."""
    described = answer(admin.describe_user_scram_credentials(**request_timeout()))
    return {
        name: [(info.mechanism.name.replace("_", "-"), info.mechanism) for info in each.scram_credential_infos]
        for name, each in described.items()
    }


def _require(admin: Any, name: str) -> list[tuple[str, Any]]:
    users = _users(admin)
    if name not in users:
        raise ClientError(f"unknown user '{name}': see 'conveyor user list'")
    return users[name]


def _set_password(admin: Any, name: str) -> None:
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    secret = _read_password(name).encode()
    upsertions = [
        UserScramCredentialUpsertion(
            name, ScramCredentialInfo(mechanism, MIN_ITERATIONS), secret, secrets.token_bytes(SALT_BYTES)
        )
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    answer(admin.alter_user_scram_credentials(upsertions, **request_timeout())[name])


def _read_password(name: str) -> str:
    if sys.stdin.isatty():
        secret = getpass(f"Password of {name}: ")
        if getpass("Again: ") != secret:
            raise ClientError("the two passwords differ: nothing has been changed")
    else:
        secret = sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise ClientError("no password: type one, or write it to the standard input; nothing has been changed")
    return secret
