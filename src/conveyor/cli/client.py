"""What the client commands share: the broker's address, and errors in one line. They are ordinary Kafka clients."""

import logging
from typing import Annotated, Any

import typer

from conveyor.kernel.errors import ConveyorError

TIMEOUT_S = 10.0

Bootstrap = Annotated[
    str, typer.Option("--bootstrap", envvar="CONVEYOR_BOOTSTRAP", metavar="HOST:PORT", help="A broker to connect to.")
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class ClientError(ConveyorError):
    """A command could not be carried out; the message is one line."""


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Settings of a confluent-kafka client that says nothing by itself."""
    quiet = logging.getLogger("conveyor.client")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    return {"bootstrap.servers": bootstrap, "logger": quiet, "log.connection.close": False, **more}


def unreachable(bootstrap: str) -> ClientError:
    return ClientError(
        f"no broker answers at {bootstrap}: start one with 'conveyor serve', or give --bootstrap HOST:PORT"
    )


def cluster_metadata(client: Any, bootstrap: str, topic: str | None = None) -> Any:
    """The cluster as the broker tells it. Raises ClientError if nobody answers."""
    from confluent_kafka import KafkaException

    try:
        return client.list_topics(topic, timeout=TIMEOUT_S) if topic else client.list_topics(timeout=TIMEOUT_S)
    except KafkaException as error:
        raise unreachable(bootstrap) from error


def require_topic(client: Any, bootstrap: str, topic: str) -> Any:
    """The topic's metadata. Raises ClientError if it is not there."""
    found = cluster_metadata(client, bootstrap).topics.get(topic)
    if found is None:
        raise ClientError(
            f"unknown topic '{topic}': see 'conveyor topic list', or make it with 'conveyor topic create'"
        )
    return found
