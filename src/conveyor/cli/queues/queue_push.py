"""`conveyor queue push`: give a subscription a push target, change, pause, resume or end it."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.push_options import (
    PushAllowPrivate,
    PushConcurrency,
    PushContentType,
    PushMode,
    PushSecretFile,
    PushTimeout,
    push_document,
    show_made_secret,
)
from conveyor.cli.queues.queue_options import Name
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import ClientError, Json

_Url = Annotated[str | None, typer.Option("--push-url", metavar="URL", help="Where messages are posted.")]
_Pause = Annotated[bool, typer.Option("--pause", help="Send nothing until --resume; clients can pull.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Send again, also after the target was gone (410).")]
_Rotate = Annotated[
    bool, typer.Option("--rotate-secret", help="Make a second secret, and show it. Both sign until --drop-old-secret.")
]
_Drop = Annotated[bool, typer.Option("--drop-old-secret", help="Sign with the newest secret only.")]
_End = Annotated[bool, typer.Option("--end", help="Push no more.")]


def push(
    name: Name,
    url: _Url = None,
    mode: PushMode = None,
    secret_file: PushSecretFile = None,
    max_concurrency: PushConcurrency = None,
    timeout: PushTimeout = None,
    content_type: PushContentType = None,
    allow_private: PushAllowPrivate = False,
    pause: _Pause = False,
    resume: _Resume = False,
    rotate_secret: _Rotate = False,
    drop_old_secret: _Drop = False,
    end: _End = False,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Deliver the messages of a subscription by HTTP POST.

    Options that are left out change nothing. The user who runs this becomes the owner of the push, which goes on
    as long as its owner may read the topic and the subscription.

    \b
    Examples:
      conveyor queue push billing --push-url https://billing.example/hook
      conveyor queue push billing --rotate-secret
      conveyor queue push billing --resume
    """
    document = push_document(
        url,
        mode,
        secret_file,
        allow_private=allow_private,
        max_concurrency=max_concurrency,
        timeout=timeout,
        content_type=content_type,
    )
    if pause and resume:
        raise ClientError("--pause and --resume exclude each other")
    if pause or resume:
        document["paused"] = pause
    document |= {
        field: True
        for field, is_given in (("rotate_secret", rotate_secret), ("drop_old_secret", drop_old_secret))
        if is_given
    }
    if end == bool(document):
        raise ClientError("say what to change, as with --push-url or --pause, or give --end and nothing else")
    body: dict[str, Any] = {"push": None if end else document}
    changed = http_client(bootstrap, http).patch(path_to("subscriptions", name), body)
    if as_json:
        return typer.echo(json.dumps(changed))
    if end:
        return typer.echo(f"{name} pushes no more")
    typer.echo(f"{name} pushes to {changed['push']['url']}{', paused' if changed['push']['paused'] else ''}")
    show_made_secret(changed["push"])
