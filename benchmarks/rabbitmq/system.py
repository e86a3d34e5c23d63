"""RabbitMQ as Debian packages it, one node with its defaults, in a directory and on ports of its own."""

import socket
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import free_port

_HOME = Path("/usr/lib/rabbitmq")
_SERVER = _HOME / "bin" / "rabbitmq-server"
_TIMEOUT_S = 5

# The node's name server stays when the node ends, so it is started here, and ended after it.
_SCRIPT = f"""
epmd & names=$!
{_SERVER} & server=$!
trap 'kill -TERM $server' TERM
while kill -0 $server 2>/dev/null; do wait $server; done
kill $names
"""


class NotInstalledError(Exception):
    """RabbitMQ is not to be had here; says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQ:
    """The system to compare queues with."""

    version: str
    name: str = "RabbitMQ"
    policy: str = "-"

    @property
    def topic_settings(self) -> dict[str, str]:
        return {}

    def prepare(self, directory: Path, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        configuration, plugins = directory / "rabbitmq.conf", directory / "enabled_plugins"
        configuration.write_text(f"listeners.tcp.1 = {host}:{port}\n")
        plugins.write_text("[].\n")
        environment = {
            "HOME": directory,  # Where Erlang's cookie goes.
            "ERL_EPMD_ADDRESS": host,
            "ERL_EPMD_PORT": free_port(),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_MNESIA_BASE": directory / "data",
            "RABBITMQ_LOG_BASE": directory / "logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": configuration,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": plugins,
        }
        return ["env", *(f"{name}={value}" for name, value in environment.items()), "sh", "-c", _SCRIPT]

    def answers(self, address: str) -> bool:
        """Whether it shakes hands: it sends its first frame, `connection.start`."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"


def find() -> RabbitMQ:
    """What is installed. Raises NotInstalledError."""
    versions = [each.name.partition("-")[2] for each in (_HOME / "lib").glob("rabbitmq_server-*")]
    if not _SERVER.exists() or not versions:
        raise NotInstalledError(f"there is no {_SERVER}: apt-get install rabbitmq-server")
    return RabbitMQ(version=versions[0])
