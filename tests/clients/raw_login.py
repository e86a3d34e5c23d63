"""A socket of a client that has logged in by PLAIN or a token, and that sends nothing by itself."""

import socket
import ssl
from typing import Any

from tests.unit.kafka_api.requests import framed, request, response

HANDSHAKE, AUTHENTICATE = 17, 36
TIMEOUT_S = 60


class LoginRefused(Exception):  # noqa: N818 - named for what it is
    """The broker does not know the user, or not with this password."""


def encrypted(address: str, ca_file: str | None, certificate: tuple[str, str] | None = None) -> socket.socket:
    """Connect by TLS, or without it if `ca_file` is None. certificate: that of the client, and its key."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    if ca_file is None:
        return connection
    context = ssl.create_default_context(cafile=ca_file)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context.wrap_socket(connection, server_hostname=host)


def logged_in(address: str, ca_file: str | None, user: str, password: str) -> socket.socket:
    """Return the socket of a client that is this user. Raises LoginRefused."""
    return _proved(encrypted(address, ca_file), "PLAIN", f"\0{user}\0{password}")


def logged_in_by_token(address: str, ca_file: str | None, token: str) -> socket.socket:
    """Return the socket of a client that is the user of a token. Raises LoginRefused."""
    return _proved(encrypted(address, ca_file), "OAUTHBEARER", f"n,,\1auth=Bearer {token}\1\1")


def _proved(connection: socket.socket, mechanism: str, proof: str) -> socket.socket:
    ask(connection, HANDSHAKE, 1, mechanism=mechanism)
    answer = ask(connection, AUTHENTICATE, 2, auth_bytes=proof.encode())
    if int(answer.error_code):
        connection.close()
        raise LoginRefused(answer.error_message)
    return connection


def ask(connection: socket.socket, api_key: int, version: int, **values: Any) -> Any:
    """Send a request, and return the body of its response."""
    connection.sendall(framed(request(api_key, version, **values)))
    size = int.from_bytes(exactly(connection, 4), "big")
    return response(api_key, version, exactly(connection, size))


def exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        assert part, "the broker has closed the connection"
        received += part
    return received


def wait_for_end(connection: socket.socket) -> None:
    """Return when the broker has closed the connection, on which it says nothing more."""
    try:
        assert connection.recv(1) == b""
    except TimeoutError:
        raise
    except OSError:
        pass  # It was reset.
