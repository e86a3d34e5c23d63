"""kcat, a command line program, as tests run it."""

import subprocess

from tests.clients.python.security import librdkafka
from tests.clients.scenarios import Bootstrap

READ_ALL = ("-C", "-o", "beginning", "-e", "-q")


def connection(bootstrap: str) -> list[str]:
    """Return the arguments by which kcat connects."""
    return [word for name, value in librdkafka(bootstrap).items() for word in ("-X", f"{name}={value}")]


def kcat(broker: Bootstrap, *arguments: str, given: bytes = b"") -> bytes:
    return run(broker, *arguments, given=given).stdout


def run(broker: Bootstrap, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    ended = try_to(broker, *arguments, given=given)
    ended.check_returncode()
    return ended


def try_to(broker: Bootstrap, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """As `run`, also if it fails."""
    command = ["kcat", *connection(broker.bootstrap_servers), *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=120)
