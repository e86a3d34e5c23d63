"""What an application has of a WebSocket: the handler that it provides, and the connection that it is given."""

from typing import Protocol


class OpenWebSocket(Protocol):
    """An open WebSocket. After its end, calls have no effect."""

    def send(self, message: str | bytes) -> None:
        """Send a message. Raises BudgetFull if the client does not read and too many bytes wait for it."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Begin the closing handshake. No further message is received."""

    def pause_reading(self) -> None:
        """Receive no further message until `resume_reading`, which is due even if the connection is over.

        The last message counts as memory of a request until then.
        """

    def resume_reading(self) -> None:
        """Receive messages again, in a later tick."""


class WebSocketHandler(Protocol):
    """Receives the messages of one WebSocket. A method that raises closes it: BudgetFull with 1013, a bug with 1011."""

    def opened(self, websocket: OpenWebSocket) -> None:
        """The connection is open. Called first, and not for a request that is refused."""

    def received(self, message: str | bytes) -> None:
        """A message has arrived: text or bytes."""

    def pause_writing(self) -> None:
        """The client does not read fast enough: send nothing until `resume_writing`."""

    def resume_writing(self) -> None:
        """The client has read almost all that was sent."""

    def closed(self, code: int) -> None:
        """The connection is over. Called once, last. code: that of the first Close frame; 1006 without one."""
