"""The commands' HTTP client: addresses, tokens, and errors in one line."""

from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.unit.cli.commands import Run


def test_address_may_leave_out_the_scheme(run_on_broker: Run, memory_broker: Broker) -> None:
    without = memory_broker.http_url.removeprefix("http://")
    for address in (memory_broker.http_url, f"{memory_broker.http_url}/", without):
        assert run_on_broker("dlq", "list", "--json", "--http", address) == (0, "[]\n", "")


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://", "127.0.0.1:99999", "127.0.0.1:0", "", "http://[x"])
def test_invalid_address_is_refused(run: Run, address: str) -> None:
    expected = f"conveyor: --http {address}: expected an address such as http://127.0.0.1:8080\n"
    assert run("queue", "list", "--http", address) == (1, "", expected)


def test_error_without_a_broker(run: Run, memory_broker: Broker) -> None:
    url = memory_broker.http_url
    memory_broker.stop()
    expected = f"conveyor: no broker answers at {url}: start one with 'conveyor serve', or give --http URL\n"
    assert run("queue", "list", "--http", url) == (1, "", expected)


def test_error_if_another_server_answers(run: Run, memory_broker: Broker) -> None:
    """A Kafka listener closes the connection on an HTTP request."""
    ended = run("queue", "list", "--http", memory_broker.bootstrap_servers)
    expected = f"http://{memory_broker.bootstrap_servers} is not the HTTP address of a broker"
    assert ended == (1, "", f"conveyor: {expected}: give --http URL\n")


def test_path_without_an_api_is_an_error(run_on_broker: Run, memory_broker: Broker) -> None:
    ended = run_on_broker("queue", "list", "--http", f"{memory_broker.http_url}/docs")
    assert (ended.exit_code, ended.error.count("\n")) == (1, 1)
    assert "no endpoint has the path /docs/subscriptions" in ended.error


def test_token_is_sent(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("sesame\n")
    with Broker(memory=True, settings={"network.token_file": str(tokens)}) as broker:
        monkeypatch.setenv("CONVEYOR_HTTP", broker.http_url)
        assert run("queue", "list", "--json", "--token", "sesame") == (0, "[]\n", "")
        for wrong in ([], ["--token", "barley"]):
            refused = run("queue", "list", *wrong)
            assert refused.exit_code == 1
            assert refused.error.endswith("give one with --token, or set CONVEYOR_TOKEN\n")
        monkeypatch.setenv("CONVEYOR_TOKEN", "sesame")
        assert run("queue", "list", "--json").out == "[]\n"


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ümlaut"])
def test_token_that_no_header_can_contain_is_refused(run: Run, token: str) -> None:
    expected = "conveyor: --token: a token consists of printable ASCII characters without spaces\n"
    assert run("queue", "list", "--token", token) == (1, "", expected)
