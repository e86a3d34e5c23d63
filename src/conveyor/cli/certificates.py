"""`conveyor certificates`: development authorities, and certificates of brokers and clients."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conveyor.cli.terminal.kafka_client import ClientError

if TYPE_CHECKING:  # Its library takes long to load.
    from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued

AUTHORITY, PEER_AUTHORITY, BROKER = "ca", "peer-ca", "broker"

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_FILE_NAME = re.compile(r"[\w.@-]+")
_DAYS = 365


def certificates(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where the files go.")] = Path("certificates"),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A name or an address of the broker; can be repeated."),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="USER", help="Make a certificate for this client, too; can be repeated."),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the broker's files.")] = BROKER,
    peer: Annotated[
        bool,
        typer.Option("--peer", help="Make an authority and a certificate for the links between brokers, too."),
    ] = False,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long the certificates are valid.")] = _DAYS,
) -> None:
    """Make an authority, and certificates for TLS, for development and tests.

    Authorities that are in the directory are kept, so that the command can be repeated for more brokers, or more
    clients. Certificates of the same name are replaced; running brokers load theirs again.
    """
    peer_name, users = f"{name}-peer", client or []
    for file_name in (name, *users):
        _check(file_name)
    if taken := {name, peer_name} & set(users):
        raise ClientError(f"the broker and a client cannot both be {taken.pop()!r}: their files would be the same")
    directory.mkdir(parents=True, exist_ok=True)
    authority = _authority(directory, AUTHORITY)
    hosts = list(dict.fromkeys([*(host or []), *_LOCAL_HOSTS]))
    try:
        _write(directory, name, authority.issue_for_broker(hosts, days))
        if peer:
            _write(directory, peer_name, _authority(directory, PEER_AUTHORITY).issue_for_peer(hosts, days))
    except ValueError as error:
        raise ClientError(f"--host {', '.join(hosts)}: {error}") from error
    for user in users:
        _write(directory, user, authority.issue_for_client(user, days))
    certificate, key = _paths(directory, name)
    typer.echo(f"{certificate} for {', '.join(hosts)}, valid for {days} days\n")
    typer.echo(f"  conveyor serve --kafka SSL://127.0.0.1:9093 --cert-file {certificate} --key-file {key}\n")
    typer.echo(f"Clients trust the broker by {_paths(directory, AUTHORITY)[0]} (ssl.ca.location).")
    if peer:
        _show_peer(directory, peer_name)
    for user in users:
        certificate, key = _paths(directory, user)
        typer.echo(f"{user} shows {certificate} with {key}: it is User:CN={user}")


def _show_peer(directory: Path, name: str) -> None:
    certificate, key = _paths(directory, name)
    authority, _ = _paths(directory, PEER_AUTHORITY)
    typer.echo("Brokers trust each other by these settings, if all of them have the like:\n")
    typer.echo(
        f"  --set tls.peer_cert_file={certificate} --set tls.peer_key_file={key} --set tls.peer_ca_file={authority}\n"
    )


def _check(file_name: str) -> None:
    is_taken = file_name in (AUTHORITY, PEER_AUTHORITY)
    if not _FILE_NAME.fullmatch(file_name) or file_name.startswith(".") or is_taken:
        raise ClientError(f"{file_name!r} cannot be the name of a file here: use letters, digits, and - _ . @")


def _authority(directory: Path, name: str) -> "DevelopmentAuthority":
    """Return the authority in a directory, a new one if there is none. Raises ClientError."""
    from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued

    certificate, key = _paths(directory, name)
    if not certificate.exists() and not key.exists():
        authority = DevelopmentAuthority.create()
        _write(directory, name, authority.issued)
        return authority
    try:
        authority = DevelopmentAuthority(Issued(certificate.read_bytes(), key.read_bytes()))
    except ValueError as error:
        raise ClientError(f"{certificate} and {key} are no authority that can sign: {error}") from error
    if authority.expires_at < datetime.now(UTC):
        raise ClientError(
            f"the authority in {certificate} has expired: remove {certificate} and {key}, repeat the command, and let"
            " clients and brokers trust the new authority"
        )
    return authority


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


def _write(directory: Path, name: str, issued: "Issued") -> None:
    """Replace both files, so that nobody sees a part of one. Only their owner can read the key."""
    for path, content, mode in zip(_paths(directory, name), issued, (0o644, 0o600), strict=True):
        made = path.with_name(f".{path.name}.new")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        made.replace(path)
