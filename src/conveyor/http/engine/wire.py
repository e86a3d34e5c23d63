"""The transport of one connection, and the machine without I/O that it drives."""

from collections.abc import Callable, Collection
from typing import Protocol

from conveyor.kernel.access.caller import Caller

WRITE_S = 60
"""A client that does not read what it is sent for this long is disconnected."""
LINGER_S = 5
"""How long a connection that is being closed waits for its client."""


class ConnectionMachine(Protocol):
    """What a transport calls. Methods that asyncio's protocols have as well are named as there."""

    caller: Caller

    def receive(self, data: bytes) -> None:
        """The client has sent bytes."""

    def end_of_input(self) -> None:
        """The client sends no more."""

    def connection_lost(self) -> None:
        """The transport is closed."""

    def pause_writing(self) -> None:
        """The client does not read fast enough."""

    def resume_writing(self) -> None:
        """The client has read almost all that was written."""

    def advance(self, now: float) -> None:
        """End what has taken too long."""

    def log_out(self, users: Collection[str]) -> None:
        """Disconnect the client if one of these users has logged in for the current request, who may do so no more."""

    def finish(self) -> None:
        """The service stops: begin nothing new, and close the connection once what has begun is complete."""


class Wire(Protocol):
    """The transport of one connection."""

    def write(self, data: bytes) -> None:
        """Send bytes. May call `ConnectionMachine.pause_writing`."""

    def end(self) -> None:
        """Tell the client that no more bytes follow those written, but read on."""

    def close(self) -> None:
        """Close once the written bytes are sent."""

    def abort(self) -> None:
        """Close at once."""

    def set_reading(self, is_reading: bool) -> None:
        """Read from the client, or stop reading."""

    def known(self) -> None:
        """Note that the client has proved who it is."""

    def time(self) -> float:
        """Return the time in seconds, from any origin."""

    def later(self, work: Callable[[], None]) -> None:
        """Call the work in a later tick."""

    def hand_over(self, machine: ConnectionMachine) -> None:
        """Drive another machine from now on."""
