"""`conveyor cluster unregister`: removes a broker that will not return."""

from typing import Annotated

import typer

from conveyor.cli.cluster.cluster_client import cluster_client, require_broker
from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap


def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove a broker from the list of brokers, after it was drained and stopped forever.

    A broker that is live or holds replicas is not removed. A broker that is started again is listed again.

    \b
    Example:
      conveyor cluster unregister 4
    """
    with cluster_client(bootstrap) as client:
        image, _ = client.image()
        node_id = require_broker(image, broker)
        confirm(f"Remove broker {broker} from the cluster?", yes)
        client.unregister(node_id)
    typer.echo(f"removed broker {broker}")
