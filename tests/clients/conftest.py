"""One broker for all clients of a module; each test has topics of its own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.clients.all_clients import CLIENTS, Client
from tests.clients.applications import Processes
from tests.clients.programs import Program
from tests.clients.python.security import VARIABLE
from tests.clients.rest_client import Rest


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def rest(broker: Broker) -> Iterator[Rest]:
    client = Rest(broker)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.fixture(params=CLIENTS, ids=lambda each: each.name)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture
def program(client: Client) -> Program:
    return client.program()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Brokers and applications of one test."""
    processes = Processes(tmp_path)
    yield processes
    processes.clear()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def by_tls(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, str] | None], None]:
    """Let the clients of a test connect by TLS, each time with the certificate and the key that it names, or none."""

    def connect(own: tuple[str, str] | None) -> None:
        monkeypatch.setenv(VARIABLE, json.dumps(certificates.connection(own)))

    return connect
