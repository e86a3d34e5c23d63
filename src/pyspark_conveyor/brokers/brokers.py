"""The brokers of a cluster, and how clients connect to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_conveyor.brokers.token_file import confluent_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """See the module's docstring.

    bootstrap_servers: `host:port[,host:port]`. client: what clients need to be let in, by librdkafka's names; see
    `raw_client`.
    """

    bootstrap_servers: str
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """As options of the data source."""
        return {"bootstrap.servers": self.bootstrap_servers} | {
            f"kafka.{name}": value for name, value in self.client.items()
        }

    @property
    def confluent(self) -> dict[str, Any]:
        """As settings of a confluent-kafka client. Raises PipelineError."""
        return {"bootstrap.servers": self.bootstrap_servers, **confluent_options(self.client)}
