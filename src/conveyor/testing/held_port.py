"""A port that remains a server's own while the server is stopped."""

import socket
import sys
import weakref
from collections.abc import Mapping

_HOST = "127.0.0.1"
_LISTENERS = ("network.kafka", "network.http")


class HeldPort:
    """A free port of this machine, held until `close` or until this object is gone.

    The port of a stopped server is free for every program: a client that connects somewhere may get it as its own, and
    if it connects to that server, it is then connected to itself. So a socket stays bound to the port without
    listening. Linux lets a server listen beside it that sets SO_REUSEADDR, as all do. Other systems do not; there the
    port is only free when this object is made.
    """

    def __init__(self) -> None:
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_HOST, 0))
        self.port: int = holder.getsockname()[1]
        self.close = weakref.finalize(self, holder.close)
        if sys.platform != "linux":
            self.close()

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"


def hold_listeners(settings: Mapping[str, object]) -> dict[str, HeldPort]:
    """Hold a port for each listener of a broker that the settings leave open, by the setting's name."""
    return {name: HeldPort() for name in _LISTENERS if name not in settings}
