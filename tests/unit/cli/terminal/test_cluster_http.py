"""Commands that use HTTP work on the cluster that the Kafka address names, and on no other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.testing import Broker, Cluster
from tests.unit.cli.commands import Run

SETTING = "network.http_advertised"


@pytest.fixture
def other() -> Iterator[Broker]:
    """Yield a broker of another cluster, with a subscription."""
    with Broker(memory=True) as broker:
        yield broker


def subscribe(run: Run, broker: Broker) -> None:
    """Make the subscription `q` with one unsettled message."""
    at = ("--bootstrap", broker.bootstrap_servers)
    assert run("topic", "create", "t", *at).exit_code == 0
    assert run("queue", "create", "t", "q", "--start", "earliest", *at).exit_code == 0
    assert run("produce", "t", *at, given=b"x\n").exit_code == 0


def unsettled(run: Run, broker: Broker) -> bool:
    peeked = run("queue", "peek", "q", "--json", "--bootstrap", broker.bootstrap_servers)
    assert peeked.exit_code == 0
    return peeked.out != "[]\n"


@pytest.mark.slow
def test_commands_follow_the_kafka_address_alone(
    run: Run, memory_broker: Broker, other: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(run, memory_broker)
    subscribe(run, other)
    monkeypatch.setenv("CONVEYOR_BOOTSTRAP", memory_broker.bootstrap_servers)
    monkeypatch.setenv("CONVEYOR_HTTP", other.http_url)
    assert run("queue", "purge", "q", "--yes").out == "purged 1 message of q\n"
    assert not unsettled(run, memory_broker)
    assert unsettled(run, other)


def test_http_address_of_another_cluster_is_refused(run_on_broker: Run, memory_broker: Broker, other: Broker) -> None:
    subscribe(run_on_broker, other)
    ended = run_on_broker("queue", "purge", "q", "--yes", "--http", other.http_url)
    assert ended.exit_code == 1
    assert ended.error.startswith(f"conveyor: {other.http_url} belongs to cluster ")
    assert f", and {memory_broker.bootstrap_servers} (--bootstrap) to cluster " in ended.error
    assert unsettled(run_on_broker, other)


def test_http_address_alone_names_a_cluster(run: Run, memory_broker: Broker) -> None:
    """As a gateway's does, whose Kafka listener may be out of reach."""
    assert run("queue", "list", "--json", "--http", memory_broker.http_url) == (0, "[]\n", "")


def test_announced_address_of_another_cluster_is_refused(run: Run, other: Broker) -> None:
    subscribe(run, other)
    with Broker(memory=True, settings={SETTING: other.http_url}) as broker:
        ended = run("queue", "purge", "q", "--yes", "--bootstrap", broker.bootstrap_servers)
    assert ended.exit_code == 1
    assert "belongs to cluster" in ended.error
    assert ended.error.endswith(f": correct {SETTING} of the brokers, or give --http URL\n")
    assert unsettled(run, other)


def test_announced_address_without_a_broker_is_named(run: Run) -> None:
    with Broker(memory=True, settings={SETTING: "http://127.0.0.1:1"}) as broker:
        ended = run("queue", "list", "--bootstrap", broker.bootstrap_servers)
    expected = f"no broker answers at http://127.0.0.1:1: correct {SETTING} of the brokers, or give --http URL"
    assert ended == (1, "", f"conveyor: {expected}\n")


def test_announced_address_may_end_with_a_slash(run: Run) -> None:
    """The listener's port must be known before the broker starts, so another broker takes the place of a proxy."""
    with Broker(memory=True) as broker:
        url = f"{broker.http_url}/"
        broker.stop()
        with Broker(memory=True, settings={"network.http": url[7:-1], SETTING: url}) as announcing:
            ended = run("queue", "list", "--json", "--bootstrap", announcing.bootstrap_servers)
    assert ended == (0, "[]\n", "")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h", "http://", "http://a b"])
def test_announced_address_is_checked_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match=r"it takes an address such as https://queues\.example"):
        Broker(memory=True, settings={SETTING: url}).start()


def test_another_broker_answers_when_one_is_dead(run: Run) -> None:
    with Cluster(brokers=2) as cluster:
        bootstrap = cluster.bootstrap_servers
        assert run("queue", "list", "--json", "--bootstrap", bootstrap) == (0, "[]\n", "")
        cluster.kill(1)
        assert run("queue", "list", "--json", "--bootstrap", bootstrap) == (0, "[]\n", "")


def test_token_is_sent(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("sesame\n")
    with Broker(memory=True, settings={"network.token_file": str(tokens)}) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        for wrong in ("", "barley"):
            monkeypatch.setenv("CONVEYOR_TOKEN", wrong)
            refused = run("queue", "list")
            assert refused.exit_code == 1
            assert refused.error.startswith("conveyor: the broker wants to know who asks: set CONVEYOR_TOKEN")
        monkeypatch.setenv("CONVEYOR_TOKEN", "sesame")
        assert run("queue", "list", "--json").out == "[]\n"


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ümlaut"])
def test_token_that_no_header_can_contain_is_refused(run: Run, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_TOKEN", token)
    expected = "conveyor: CONVEYOR_TOKEN: a token consists of printable ASCII characters without spaces\n"
    assert run("queue", "list") == (1, "", expected)


def test_token_is_no_option_because_others_could_see_it(run: Run) -> None:
    refused = run("queue", "list", "--token", "sesame")
    assert refused.exit_code == 2
    assert "No such option" in refused.error
