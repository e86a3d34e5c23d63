"""A broker with a token file lets in who brings one of its tokens, and may be reached from other machines over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.testing import Broker
from tests.clients.rest_client import Rest
from tests.processes import BrokerProcess


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text("# of the shop\nfirst-token\nsecond-token\n")
    return path


@pytest.fixture(scope="module")
def guarded(token_file: Path) -> Iterator[Broker]:
    with Broker(memory=True, settings={"network.token_file": str(token_file)}) as running:
        yield running


@pytest.fixture
def rest(guarded: Broker) -> Iterator[Rest]:
    client = Rest(guarded)
    yield client
    client.close()


@pytest.mark.parametrize("path", ["/topics", "/subscriptions/a/messages", "/dlq", "/schedules", "/metrics"])
def test_request_without_a_token_is_refused(rest: Rest, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer third-token"}, {"Authorization": "Basic first-token"}):
        answer = rest.ask("GET", path, headers=headers)
        assert answer.problem[:2] == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="conveyor"'
        assert "Authorization: Bearer" in answer.problem[2]


@pytest.mark.parametrize("token", ["first-token", "second-token"])
def test_request_with_a_token_is_let_in(rest: Rest, token: str) -> None:
    assert rest.ask("GET", "/topics", headers={"Authorization": f"Bearer {token}"}).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/docs"])
def test_request_that_tells_nothing_of_the_data_needs_no_token(rest: Rest, path: str) -> None:
    assert rest.get(path).status == 200


def test_broker_with_tokens_may_be_reached_over_http_from_other_machines(token_file: Path) -> None:
    settings = {"network.token_file": str(token_file), "network.http": "0.0.0.0:0"}
    with Broker(memory=True, settings=settings) as broker:
        assert broker.http_url.startswith("http://0.0.0.0:")


def test_broker_with_tokens_may_not_be_reached_by_kafka_clients_of_other_machines(token_file: Path) -> None:
    settings = {"network.token_file": str(token_file), "network.kafka": "0.0.0.0:0"}
    with pytest.raises(SettingsError, match="clients are not authenticated"), Broker(memory=True, settings=settings):
        pass


def test_broker_without_its_token_file_does_not_start(tmp_path: Path) -> None:
    settings = {"network.token_file": str(tmp_path / "absent")}
    with pytest.raises(SettingsError, match="cannot be read"), Broker(memory=True, settings=settings):
        pass


def test_page_of_another_site_is_refused_where_no_tokens_are_asked_for(memory_broker: Broker, guarded: Broker) -> None:
    foreign = {"Origin": "https://example.org", "Authorization": "Bearer first-token"}
    for broker, expected in ((memory_broker, 403), (guarded, 200)):
        rest = Rest(broker)
        assert rest.ask("GET", "/topics", headers=foreign).status == expected
        own = {"Origin": broker.http_url, "Authorization": "Bearer first-token"}
        assert rest.ask("GET", "/topics", headers=own).status == 200
        rest.close()


def test_command_takes_the_token_file(tmp_path: Path, token_file: Path) -> None:
    process = BrokerProcess(tmp_path / "data", "--token-file", str(token_file)).start()
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{process.ready['http']}/topics")
    assert process.stop() == 0
