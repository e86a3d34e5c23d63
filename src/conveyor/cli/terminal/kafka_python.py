"""kafka-python's admin client, for the requests that confluent-kafka does not have."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conveyor.cli.terminal.client_security import client_security
from conveyor.cli.terminal.kafka_client import TIMEOUT_S, ClientError, admin_client, unreachable_error

_TIMEOUT_MS = int(TIMEOUT_S * 1000)
_ATTEMPTS = 10
_ERROR_MESSAGE = re.compile(r"error_message='([^']+)'")


@contextmanager
def kafka_python_admin(bootstrap: str) -> Iterator[Any]:
    """Connect to the cluster with a KafkaAdminClient. Raises ClientError if no broker answers."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    logging.getLogger("kafka").addHandler(logging.NullHandler())
    admin_client(bootstrap)  # It reports wrong addresses; kafka-python would leave its sockets open.
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap, request_timeout_ms=_TIMEOUT_MS, **client_security().kafka_python
        )
    except KafkaError as error:
        raise unreachable_error(bootstrap) from error
    try:
        yield admin
    finally:
        admin.close()


@contextmanager
def errors_of_kafka_python() -> Iterator[None]:
    """Turn the client's exceptions into ClientError."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        raise ClientError(_told(str(error))) from error


def _told(text: str) -> str:
    """Return what the broker says in an error whose text has the whole response."""
    found = _ERROR_MESSAGE.search(text)
    return text if found is None else found[1]


def ask_any_broker(question: Callable[[], Any]) -> Any:
    """Ask what any broker can answer. Raises ClientError.

    The client may choose a broker that has just died, because brokers remain in its list for some seconds. It chooses
    another one next time.
    """
    from kafka.errors import KafkaConnectionError

    with errors_of_kafka_python():
        for _ in range(_ATTEMPTS - 1):
            try:
                return question()
            except KafkaConnectionError:
                continue
        return question()
