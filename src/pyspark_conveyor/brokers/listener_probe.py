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
