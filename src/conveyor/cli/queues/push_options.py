"""The options of commands about a push, and the document that they make."""

from pathlib import Path
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import duration_ms, one_of
from conveyor.cli.terminal.kafka_client import ClientError

_MODES = ("binary", "structured", "batch")

PushMode = Annotated[
    str | None,
    typer.Option(
        "--push-mode",
        metavar="binary|structured|batch",
        help="How requests contain CloudEvents: attributes in headers, in a JSON document, or a list of documents.",
        show_default="binary",
    ),
]
PushSecretFile = Annotated[
    str | None,
    typer.Option(
        "--push-secret-file",
        metavar="FILE",
        help="A file with the secret that signs requests: whsec_ and base64.",
        show_default="the broker makes one",
    ),
]
PushConcurrency = Annotated[
    int | None, typer.Option("--push-max-concurrency", metavar="N", help="Most requests at a time.", show_default="10")
]
PushTimeout = Annotated[
    str | None,
    typer.Option("--push-timeout", metavar="DURATION", help="Longest wait for an answer.", show_default="30s"),
]
PushContentType = Annotated[
    str | None,
    typer.Option(
        "--push-content-type",
        metavar="TYPE",
        help="Content type of messages that have no such header.",
        show_default="application/octet-stream",
    ),
]
PushAllowPrivate = Annotated[
    bool,
    typer.Option("--push-allow-private", help="The target may have a private address, if the broker permits that."),
]


def push_document(
    url: str | None,
    mode: str | None,
    secret_file: str | None,
    *,
    allow_private: bool,
    max_concurrency: int | None = None,
    timeout: str | None = None,
    content_type: str | None = None,
) -> dict[str, Any]:
    """Return the fields of a push that were given. Raises ClientError."""
    given = {
        "url": url,
        "mode": None if mode is None else one_of("--push-mode", mode, _MODES),
        "secret": None if secret_file is None else _secret(secret_file),
        "max_concurrency": max_concurrency,
        "timeout_ms": None if timeout is None else duration_ms("--push-timeout", timeout),
        "content_type": content_type,
        "allow_private": allow_private or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def show_made_secret(push: dict[str, Any]) -> None:
    """Print a secret that the broker has made."""
    if "secret" in push:
        typer.echo(f"secret for the receiver, which is not shown again: {push['secret']}")


def _secret(secret_file: str) -> str:
    try:
        return Path(secret_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"--push-secret-file {secret_file} cannot be read: {error}") from error
