"""Commands log in as the user of their file of settings, by password or token, over Kafka's protocol and over HTTP."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conveyor.cli.terminal.client_security import ClientSecurity
from conveyor.testing import Broker
from pyspark_conveyor.brokers.token_file import TOKEN_URL
from tests.identity_provider import AUDIENCE, ISSUER, key_set, signing_key, token
from tests.unit.cli.commands import Run

Configure = Callable[..., str]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Return the path of a file with these lines."""

    def write(*lines: str) -> str:
        path = tmp_path / f"client-{len(list(tmp_path.iterdir()))}.properties"
        path.write_text("\n".join(lines))
        return str(path)

    return write


@pytest.fixture
def token_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """Yield a broker whose clients log in by tokens, over Kafka's protocol and over HTTP."""
    (tmp_path / "keys.json").write_bytes(key_set(signing_key("RS256")))
    settings = {
        "network.kafka": "SASL_PLAINTEXT://127.0.0.1:0",
        "network.sasl_mechanisms": "OAUTHBEARER",
        "network.http_users": True,
        "sasl.jwks_file": str(tmp_path / "keys.json"),
        "sasl.oauth_audience": AUDIENCE,
        "sasl.oauth_issuer": ISSUER,
    }
    with Broker(memory=True, settings=settings) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        yield broker


@pytest.mark.slow
def test_user_with_a_password(run: Run, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(memory=True, security=True) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        user = f"sasl.username={broker.admin_user}", f"sasl.password={broker.admin_password}"
        connection = "sasl.mechanism=SCRAM-SHA-256", f"ssl.ca.location={broker.ca_file}"
        file = configure("security.protocol=SASL_SSL", *connection, *user)
        check_commands(run, file)
        wrong = configure("security.protocol=SASL_SSL", *connection, user[0], "sasl.password=wrong")
        monkeypatch.delenv("CONVEYOR_BOOTSTRAP")
        refused = run("--client-config", wrong, "queue", "list", "--http", broker.http_url)
        assert refused.error.startswith("conveyor: the broker wants to know who asks")


@pytest.mark.slow
def test_client_of_a_listener_for_users_is_told_of_its_protocol(
    run: Run, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.cli.terminal.kafka_client.TIMEOUT_S", 1.0)
    with Broker(memory=True, security=True) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        file = configure("security.protocol=SSL", f"ssl.ca.location={broker.ca_file}")
        refused = run("--client-config", file, "topic", "list").error
        assert "see security.protocol in the file of --client-config" in refused
        assert "certificates: " not in refused


@pytest.mark.slow
def test_user_with_a_token(run: Run, configure: Configure, token_broker: Broker, tmp_path: Path) -> None:
    file = configure(
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=OAUTHBEARER",
        f"{TOKEN_URL}={(tmp_path / 'token').as_uri()}",
    )
    absent = run("--client-config", file, "topic", "list")
    assert f"{tmp_path / 'token'} ({TOKEN_URL}) cannot be read" in absent.error
    (tmp_path / "token").write_text(token(int(time.time() * 1000)) + "\n")
    check_commands(run, file)


def check_commands(run: Run, file: str) -> None:
    """Commands of all clients connect: confluent-kafka, kafka-python and HTTP."""
    assert run("--client-config", file, "topic", "create", "t").out == "created topic t with 1 partition\n"
    assert run("--client-config", file, "queue", "create", "t", "q", "--start", "earliest").exit_code == 0
    assert run("--client-config", file, "produce", "t", given=b"x\n").exit_code == 0
    assert "127.0.0.1" in run("--client-config", file, "cluster", "status").out
    assert "x" in run("--client-config", file, "queue", "peek", "q").out


@pytest.mark.parametrize(
    ("protocol", "mechanism", "is_told_to_all"),
    [
        ("SASL_SSL", "PLAIN", False),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", False),
        ("SASL_PLAINTEXT", "scram-sha-512", False),
        ("SASL_PLAINTEXT", "PLAIN", True),
    ],
)
def test_password_that_others_cannot_read_is_not_sent_in_the_clear(
    configure: Configure, protocol: str, mechanism: str, is_told_to_all: bool
) -> None:
    names = f"security.protocol={protocol}", f"sasl.mechanism={mechanism}", "sasl.username=a", "sasl.password=b"
    security = ClientSecurity(configure(*names))
    assert security.authorization(is_private=True) == "Basic YTpi"
    assert security.authorization(is_private=False) == ("Basic YTpi" if is_told_to_all else None)
