"""Counts the connections of each address and of each user, over all doors, and says which are too many."""

from enum import StrEnum

from conveyor.broker.services import Services
from conveyor.kernel.tally import Tally


class ConnectionOwner(StrEnum):
    """A limit of connections is for each of these."""

    ADDRESS = "address"
    USER = "user"


class ConnectionCounts:
    """See the module's docstring."""

    def __init__(self, services: Services) -> None:
        network = services.settings.network
        self._limits = {
            ConnectionOwner.ADDRESS: (network.max_connections_per_address, "network.max_connections_per_address"),
            ConnectionOwner.USER: (network.max_connections_per_user, "network.max_connections_per_user"),
        }
        self._open: Tally[tuple[ConnectionOwner, str]] = Tally()

    def enter(self, owner: ConnectionOwner, name: str) -> str | None:
        """Count a connection until it leaves. Returns why it has to be closed, if it is one too many."""
        self._open[owner, name] += 1
        limit, setting = self._limits[owner]
        return None if self._open[owner, name] <= limit else f"more than {limit} connections of {name} ({setting})"

    def count(self, owner: ConnectionOwner, name: str) -> int:
        """Return the number of open connections."""
        return self._open[owner, name]

    def leave(self, owner: ConnectionOwner, name: str) -> None:
        """Count a connection no more."""
        self._open.remove((owner, name))
