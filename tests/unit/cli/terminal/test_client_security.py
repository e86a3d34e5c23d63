"""Commands connect to a broker with TLS as a file of settings says, and say what is wrong with it."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.adapters.tls.development_authority import DevelopmentAuthority
from conveyor.cli.terminal.client_security import ClientSecurity
from conveyor.testing import Broker
from tests.certificates import write
from tests.unit.cli.commands import Run

AUTHORITY, OTHER_AUTHORITY = DevelopmentAuthority.create(), DevelopmentAuthority.create()


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """Yield a broker that demands certificates of its clients."""
    monkeypatch.chdir(tmp_path)
    for name, authority in (("ca", AUTHORITY), ("other", OTHER_AUTHORITY)):
        (tmp_path / f"{name}.pem").write_bytes(authority.issued.certificate)
    write(tmp_path, "broker", AUTHORITY.issue_for_broker(["127.0.0.1"], 1))
    write(tmp_path, "alice", AUTHORITY.issue_for_client("alice", 1))
    settings = {
        "network.kafka": "SSL://127.0.0.1:0",
        "network.http": "https://127.0.0.1:0",
        "tls.cert_file": "broker.pem",
        "tls.key_file": "broker.key",
        "tls.client_ca_file": "ca.pem",
        "tls.client_auth": "required",
    }
    with Broker(memory=True, settings=settings) as made:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", made.bootstrap_servers)
        yield made


def config(tmp_path: Path, ca: str = "ca.pem", *lines: str) -> str:
    path = tmp_path / f"client-{ca}-{len(lines)}.properties"
    path.write_text("\n".join(("# of a user", "security.protocol = SSL", f"ssl.ca.location={ca}", "", *lines)))
    return str(path)


ALICE = ("ssl.certificate.location=alice.pem", "ssl.key.location=alice.key")


@pytest.mark.slow
def test_commands_of_all_clients_connect(run: Run, broker: Broker, tmp_path: Path) -> None:
    """confluent-kafka, kafka-python and HTTP."""
    file = config(tmp_path, "ca.pem", *ALICE)
    assert run("--client-config", file, "topic", "create", "t").out == "created topic t with 1 partition\n"
    assert run("--client-config", file, "queue", "create", "t", "q", "--start", "earliest").exit_code == 0
    assert run("--client-config", file, "produce", "t", given=b"x\n").exit_code == 0
    assert "127.0.0.1" in run("--client-config", file, "cluster", "status").out
    assert "x" in run("--client-config", file, "queue", "peek", "q").out


@pytest.mark.slow
def test_wrong_certificates_are_told(run: Run, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.cli.terminal.kafka_client.TIMEOUT_S", 1.0)
    assert "is for clients that connect by TLS: give --client-config a file" in run("topic", "list").error
    for file in (config(tmp_path, "ca.pem"), config(tmp_path, "other.pem", *ALICE)):
        assert "do not accept each other's certificates" in run("--client-config", file, "topic", "list").error
    file = config(tmp_path, "other.pem", *ALICE)
    monkeypatch.delenv("CONVEYOR_BOOTSTRAP")
    refused = run("--client-config", file, "queue", "list", "--http", broker.http_url)
    assert f"the certificate of {broker.http_url} is not accepted" in refused.error


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"\xff", "cannot be read"),
        (
            b"sasl.oauthbearer.token.endpoint.url=https://id.example/token",
            "sasl.oauthbearer.token.endpoint.url is 'https://id.example/token': it takes the URL of a file",
        ),
        (b"sasl.kerberos=x", "has 'sasl.kerberos': commands know name=value with security.protocol, "),
    ],
)
def test_file_that_cannot_be_used_is_named(run: Run, tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "client.properties"
    if content is not None:
        path.write_bytes(content)
    refused = run("--client-config", str(path), "topic", "list")
    assert refused.exit_code == 1
    assert f"{path} (--client-config) {reason}" in refused.error.replace("(--client-config): ", "(--client-config) ")


def test_client_setting_with_a_provider_stays_text(tmp_path: Path) -> None:
    """Nothing in the file is looked up elsewhere, apart from the files that it names. Source: CVE-2024-31141."""
    (tmp_path / "secrets.properties").write_text("x=other\n")
    text = f"${{file:{tmp_path}/secrets.properties:x}}"
    security = ClientSecurity(config(tmp_path, "ca.pem", "sasl.username=${env:HOME}", f"sasl.password={text}"))
    assert security.confluent["sasl.password"] == security.kafka_python["sasl_plain_password"] == text
    header = security.authorization(is_private=True)
    assert header is not None
    assert base64.b64decode(header.removeprefix("Basic ")).decode() == f"${{env:HOME}}:{text}"
