"""The HTTP client of the cluster that a command names by its Kafka address.

The brokers announce their HTTP addresses to Kafka clients as the setting `network.http_advertised`. From this machine,
such an address may lead elsewhere, so a command first checks that it belongs to the cluster.
"""

import os
import re
from typing import Annotated, Any

import typer

from conveyor.cli.terminal.http_client import HttpClient
from conveyor.cli.terminal.kafka_client import (
    BOOTSTRAP_HELP,
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    ClientError,
    answer,
    client_config,
    cluster_metadata,
    request_timeout,
)

ClusterBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT",
        show_default=DEFAULT_BOOTSTRAP,
        help=BOOTSTRAP_HELP,
    ),
]
BEARER_VARIABLE = "CONVEYOR_TOKEN"
"""No option: other users of the machine can see the command line."""

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="URL",
        show_default=False,
        help="HTTP address of a broker or a gateway; by default the one that the broker announces to Kafka clients."
        f" If it requires a bearer token, set {BEARER_VARIABLE}.",
    ),
]

_SETTING = "network.http_advertised"


def http_client(bootstrap: str | None, http: str | None) -> HttpClient:
    """Return an HTTP client of the cluster. bootstrap, http: None if the user names none.

    Raises ClientError, also if the HTTP address belongs to another cluster than the Kafka address.
    """
    token = _token()
    if http is None:
        bootstrap = bootstrap or DEFAULT_BOOTSTRAP
        admin, cluster = _cluster(bootstrap)
        http, hint = _announced_url(admin, cluster, bootstrap), f"correct {_SETTING} of the brokers, or give --http URL"
        _check_cluster(http, hint, bootstrap, cluster.cluster_id)
        return HttpClient(http, token, hint)
    hint = "give another --http URL"
    client = HttpClient(http, token, hint)
    if bootstrap is not None:
        _check_cluster(http, hint, bootstrap, _cluster(bootstrap)[1].cluster_id)
    return client


def _token() -> str | None:
    token = os.environ.get(BEARER_VARIABLE) or None
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise ClientError(f"{BEARER_VARIABLE}: a token consists of printable ASCII characters without spaces")
    return token


def _cluster(bootstrap: str) -> tuple[Any, Any]:
    """Return an AdminClient and the cluster's metadata."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_config(bootstrap))
    return admin, cluster_metadata(admin, bootstrap)


def _announced_url(admin: Any, cluster: Any, bootstrap: str) -> str:
    """Ask the broker that has answered; or the controller, if that was a gateway, which Kafka clients do not list."""
    from confluent_kafka.admin import ConfigResource

    broker = cluster.orig_broker_id if cluster.orig_broker_id in cluster.brokers else cluster.controller_id
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    settings = answer(admin.describe_configs([resource], **request_timeout())[resource])
    if _SETTING not in settings:
        raise ClientError(f"the cluster at {bootstrap} announces no HTTP address: its brokers are not Conveyor's")
    return str(settings[_SETTING].value)


def _check_cluster(http: str, hint: str, bootstrap: str, cluster_id: str) -> None:
    """Ask without saying who asks: that is not meant for other clusters."""
    other = HttpClient(http, None, hint, is_known=False).cluster_id()
    if other != cluster_id:
        raise ClientError(
            f"{http} belongs to cluster {other}, and {bootstrap} (--bootstrap) to cluster {cluster_id}: {hint}"
        )
