"""The Kafka client of the commands: the broker's address, metadata, and errors as one line."""

import socket
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from conveyor.cli.terminal.client_security import client_security
from conveyor.kernel.errors import ConveyorError
from pyspark_conveyor.brokers.listener_probe import PROBE_S, accepts_certificates, speaks_tls

TIMEOUT_S = 10.0

BOOTSTRAP_VARIABLE = "CONVEYOR_BOOTSTRAP"
BOOTSTRAP_HELP = "Kafka address of a broker."
Bootstrap = Annotated[
    str,
    typer.Option("--bootstrap", envvar=BOOTSTRAP_VARIABLE, metavar="HOST:PORT", help=BOOTSTRAP_HELP),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

MOST_PARTITIONS = 100_000
"""The most partitions of a topic that the Kafka client creates."""

_NEEDS_TLS = (
    "is for clients that connect by TLS: give --client-config a file with security.protocol=SSL, and ssl.ca.location"
    " with the authority of the broker's certificate"
)
_WRONG_CERTIFICATES = (
    "and this client do not accept each other's certificates: the broker's is of the authority in ssl.ca.location, and"
    " for this address; ssl.certificate.location and ssl.key.location are for a broker that demands one of its clients"
)
_NO_USER = (
    "accepts the certificates, and closes the connections of this client after the handshake: see security.protocol in"
    " the file of --client-config. A listener for users needs SASL_SSL there instead of SSL, with sasl.mechanism,"
    " sasl.username and sasl.password"
)
_REFUSED_LOGIN = (
    "does not let this client in, or no broker is there: see security.protocol, sasl.mechanism, the user and"
    " ssl.ca.location in the file of --client-config"
)

_KAFKA_SCHEME = "plaintext"
"""The Kafka client takes `plaintext://127.0.0.1:9092` for an address, too."""


def partitions_option(help_text: str) -> Any:
    """Return the option for a topic's number of partitions."""
    return typer.Option("--partitions", "-p", min=1, max=MOST_PARTITIONS, metavar="N", help=help_text)


OnlyPartitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Only this partition; can be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class ClientError(ConveyorError):
    """A command failed. The message is one line."""


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a confluent-kafka client that logs nothing. Raises ConveyorError; see `client_security`.

    The client has no logger callback either: Ctrl-C during such a callback makes its `poll` fail.
    """
    quiet = {"log_level": 0, "log.connection.close": False}
    return {"bootstrap.servers": bootstrap, **quiet, **client_security().confluent, **more}


def admin_client(bootstrap: str) -> Any:
    """Return an AdminClient that has reached the broker. Raises ClientError if no broker answers."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_config(bootstrap))
    cluster_metadata(admin, bootstrap)
    return admin


def request_timeout() -> dict[str, float]:
    """Return the timeout as the keyword argument of AdminClient calls."""
    return {"request_timeout": TIMEOUT_S}


def answer(future: Any) -> Any:
    """Wait for the result of an AdminClient's future. Raises ClientError."""
    with errors_in_one_line():
        return future.result(TIMEOUT_S + 1)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn the Kafka client's exceptions into ClientError."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise ClientError(error.args[0].str()) from error
    except FutureTimeoutError as error:
        raise ClientError(f"the broker did not answer within {TIMEOUT_S:.0f} seconds") from error


def unreachable_error(bootstrap: str) -> ClientError:
    return ClientError(
        refusal_at(bootstrap)
        or f"no broker answers at {bootstrap}: start one with 'conveyor serve', or give --bootstrap HOST:PORT"
    )


def refusal_at(bootstrap: str) -> str | None:
    """Return why a Kafka client cannot use what listens at these addresses; None if nothing does."""
    addresses = [address.strip().rpartition("://") for address in bootstrap.split(",")]
    answers = [_answer_at(place.partition("/")[0]) for _, _, place in addresses]
    if any(answer.startswith(b"HTTP/") for answer in answers if answer):
        return f"{bootstrap} answers HTTP requests: give the Kafka address, which 'conveyor serve' prints beside it"
    if any(scheme.lower() not in ("", _KAFKA_SCHEME) for scheme, _, _ in addresses):
        return f"{bootstrap} is a URL: give the Kafka address of a broker, HOST:PORT"
    security = client_security()
    if security.has_user and any(answer is None for answer in answers):
        return f"{bootstrap} {_REFUSED_LOGIN}"
    encrypted = [place for _, _, place in addresses if speaks_tls(place)]
    if encrypted and not security.is_encrypted:
        return f"{bootstrap} {_NEEDS_TLS}"
    if encrypted:
        context = security.https()
        is_accepted = any(accepts_certificates(place, context) for place in encrypted)
        return f"{bootstrap} {_NO_USER if is_accepted else _WRONG_CERTIFICATES}"
    if b"" in answers:
        return (
            f"{bootstrap} closes the connections of Kafka clients: the broker is cut off from its cluster, is stopping,"
            " or has too many connections. Its log and GET /readyz say why; name another broker"
        )
    return None


def _answer_at(address: str) -> bytes | None:
    """Return what listens at HOST:PORT answers to an HTTP request: nothing if it closes new connections at once; None
    if nothing listens there, or if it answers otherwise.
    """
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), PROBE_S)
    except (OSError, ValueError, OverflowError):
        return None
    with connection:
        try:
            return connection.recv(1)
        except TimeoutError:
            return _http_answer(connection)
        except ConnectionError:
            return b""


def _http_answer(connection: socket.socket) -> bytes | None:
    try:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(16) or None
    except OSError:
        return None


def cluster_metadata(client: Any, bootstrap: str, topic: str | None = None) -> Any:
    """Return the cluster's metadata. Raises ClientError if no broker answers."""
    from confluent_kafka import KafkaException

    try:
        return client.list_topics(topic, timeout=TIMEOUT_S) if topic else client.list_topics(timeout=TIMEOUT_S)
    except KafkaException as error:
        raise unreachable_error(bootstrap) from error


def require_topic(client: Any, bootstrap: str, topic: str) -> Any:
    """Return the topic's metadata. Raises ClientError if it does not exist."""
    metadata = cluster_metadata(client, bootstrap).topics.get(topic)
    if metadata is None:
        raise ClientError(
            f"unknown topic '{topic}': see 'conveyor topic list', or create it with 'conveyor topic create'"
        )
    return metadata


def require_partitions(client: Any, bootstrap: str, topic: str, wanted: list[int] | None) -> list[int]:
    """Return the wanted partitions, or all of the topic's. Raises ClientError if one does not exist."""
    there = sorted(require_topic(client, bootstrap, topic).partitions)
    for number in wanted or []:
        if number not in there:
            raise unknown_partition_error(topic, number, len(there))
    return sorted(set(wanted)) if wanted else there


def unknown_partition_error(topic: str, number: int, count: int) -> ClientError:
    return ClientError(f"topic '{topic}' has no partition {number}: it has {counted(count, 'partition')}")


def named_value(option: str, text: str, example: str) -> tuple[str, str]:
    """Split NAME=VALUE into both sides. Raises ClientError."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ClientError(f"{option} {text}: expected NAME=VALUE, such as {example}")
    return name, value


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
