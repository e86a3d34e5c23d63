"""The addresses of a broker inside the test's process."""

from conveyor.server.server import Server


class Addressed:
    """A broker whose addresses are the same after each start. Before the first one they raise ValueError."""

    _server: Server | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for Kafka clients. Raises ValueError before the first start."""
        return str(self._started_server().kafka_address)

    @property
    def kafka_addresses(self) -> dict[str, str]:
        """`host:port` of each Kafka listener, by its name. Raises ValueError before the first start."""
        return {listener.name: str(listener.address) for listener in self._started_server().listeners.kafka}

    @property
    def http_url(self) -> str:
        """The URL, without a trailing slash. Raises ValueError before the first start."""
        return self._started_server().listeners.http_url()

    def _started_server(self) -> Server:
        if self._server is None:
            raise ValueError("this broker has not been started: start it first, with `with Broker() as broker:`")
        return self._server
