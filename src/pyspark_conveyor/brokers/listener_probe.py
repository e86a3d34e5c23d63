"""What listens at an address, as its bytes show, to say why a client cannot use it."""

import socket
import ssl

PROBE_S = 1.0


def speaks_tls(address: str) -> bool:
    """Return whether what listens at HOST:PORT takes clients by TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as connection,
            context.wrap_socket(connection, server_hostname=host.strip("[]")),
        ):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def accepts_certificates(address: str, context: ssl.SSLContext) -> bool:
    """Return whether what listens at HOST:PORT and a client with this context accept each other's certificates. By TLS
    1.3, a listener refuses that of its client after the handshake.
    """
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as connection,
            context.wrap_socket(connection, server_hostname=host.strip("[]")) as encrypted,
        ):
            return _waits(encrypted)
    except (OSError, ValueError, OverflowError):
        return False


def _waits(connection: socket.socket) -> bool:
    """Return whether the other side waits for a request."""
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
