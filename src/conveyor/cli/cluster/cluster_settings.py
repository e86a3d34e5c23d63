"""`conveyor cluster settings`: the settings that were changed for all brokers."""

import json
from typing import Annotated

import typer

from conveyor.cli.cluster.cluster_client import cluster_client
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError, Json, named_value
from conveyor.cli.terminal.table import print_table


def settings(
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting to change; can be repeated."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to change no more; can be repeated.")
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List or change the settings of all brokers that were changed while the brokers run.

    A change takes effect at once on every broker, and has precedence over conveyor.toml. Settings that belong to the
    whole cluster, such as min.insync.replicas, are always listed: no broker has a value of its own for them, and
    --unset returns them to their built-in defaults. Other settings that are unset return to those of each broker.

    \b
    Examples:
      conveyor cluster settings
      conveyor cluster settings --config min.insync.replicas=2
      conveyor cluster settings --unset log.retention.ms
    """
    values = dict(named_value("--config", text, "min.insync.replicas=2") for text in config or [])
    if both := set(values) & set(unset or []):
        raise ClientError(f"--config and --unset both name '{min(both)}': give only one of them")
    with cluster_client(bootstrap) as client:
        if values or unset:
            client.change_settings({**values, **dict.fromkeys(unset or [])})
        listed = client.settings()
    if as_json:
        return typer.echo(json.dumps(listed))
    if not listed:
        return typer.echo("no setting was changed for all brokers")
    print_table(["setting", "value"], [[name, value] for name, value in listed.items()])
