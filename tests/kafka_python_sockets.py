"""Sockets of kafka-python, which drops a connection that it gives up, without closing it."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

from kafka.net.inet import KafkaNetSocket


def close_what_is_given_up() -> None:
    """Let kafka-python close the socket of a connection that is refused, times out, or is given up by its client.

    A client that is closed while it connects leaves its socket to the garbage collector, which warns of it in whatever
    test happens to run then (kafka-python 3.0.12).
    """
    connect: Callable[..., Awaitable[socket.socket]] = KafkaNetSocket.sock_connect

    async def sock_connect(self: Any, net: Any, sock: socket.socket, *given: Any, **options: Any) -> socket.socket:
        try:
            return await connect(self, net, sock, *given, **options)
        except BaseException:
            sock.close()
            raise

    KafkaNetSocket.sock_connect = sock_connect
