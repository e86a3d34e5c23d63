"""`conveyor certificates` makes what brokers and clients need for TLS, and repeats itself without harm."""

import ssl
from pathlib import Path

import pytest

from conveyor.adapters.peers.issued_certificate import IssuedCertificate
from conveyor.adapters.tls.development_authority import DevelopmentAuthority
from conveyor.settings.tls_settings import TlsSettings
from tests.certificates import write
from tests.unit.cli.commands import Run, runner


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capfd)


def test_files_of_a_broker_and_a_client_are_made(run: Run, tmp_path: Path) -> None:
    made = run("certificates", "certs", "--host", "kafka.example", "--host", "192.0.2.1", "--client", "alice")
    assert made.exit_code == 0, made.error
    assert made.out == (
        "certs/broker.pem for kafka.example, 192.0.2.1, localhost, 127.0.0.1, ::1, valid for 365 days\n\n"
        "  conveyor serve --kafka SSL://127.0.0.1:9093 --cert-file certs/broker.pem --key-file certs/broker.key\n\n"
        "Clients trust the broker by certs/ca.pem (ssl.ca.location).\n"
        "alice shows certs/alice.pem with certs/alice.key: it is User:CN=alice\n"
    )
    found = sorted(path.name for path in (tmp_path / "certs").iterdir())
    assert found == ["alice.key", "alice.pem", "broker.key", "broker.pem", "ca.key", "ca.pem"]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "certs").glob("*.key")}
    assert modes == {0o600}
    context = ssl.create_default_context(cafile=tmp_path / "certs/ca.pem")
    context.load_cert_chain(tmp_path / "certs/alice.pem", tmp_path / "certs/alice.key")


def test_authority_is_kept_and_certificates_are_replaced(run: Run, tmp_path: Path) -> None:
    run("certificates", "certs")
    before = {path.name: path.read_bytes() for path in (tmp_path / "certs").iterdir()}
    run("certificates", "certs", "--client", "bob")
    run("certificates", "certs", "--name", "broker-2", "--host", "b2.example")
    after = {path.name: path.read_bytes() for path in (tmp_path / "certs").iterdir()}
    assert after.keys() - before.keys() == {"bob.pem", "bob.key", "broker-2.pem", "broker-2.key"}
    assert {name for name in before if before[name] != after[name]} == {"broker.pem", "broker.key"}


def test_certificate_for_links_between_brokers_has_an_authority_of_its_own(run: Run, tmp_path: Path) -> None:
    made = run("certificates", "certs", "--name", "b1", "--host", "b1.example", "--peer")
    assert made.out.endswith(
        "Brokers trust each other by these settings, if all of them have the like:\n\n"
        "  --set tls.peer_cert_file=certs/b1-peer.pem --set tls.peer_key_file=certs/b1-peer.key"
        " --set tls.peer_ca_file=certs/peer-ca.pem\n\n"
    )
    certs = tmp_path / "certs"
    own, key, authority = str(certs / "b1-peer.pem"), str(certs / "b1-peer.key"), certs / "peer-ca.pem"
    IssuedCertificate(
        TlsSettings(peer_cert_file=own, peer_key_file=key, peer_ca_file=str(authority)), host="b1.example"
    )
    before = authority.read_bytes()
    assert before != (certs / "ca.pem").read_bytes()
    run("certificates", "certs", "--name", "b2", "--peer")
    assert authority.read_bytes() == before
    assert {path.stat().st_mode & 0o777 for path in certs.glob("*.key")} == {0o600}


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "ca", "peer-ca", "a b"])
@pytest.mark.parametrize("option", ["--name", "--client"])
def test_names_that_are_no_files_here_are_refused(run: Run, tmp_path: Path, option: str, name: str) -> None:
    refused = run("certificates", "certs", option, name)
    assert (refused.exit_code, refused.out) == (1, "")
    assert "cannot be the name of a file here" in refused.error
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize(
    "options", [("--client", "broker"), ("--client", "broker-peer"), ("--name", "x", "--client", "x")]
)
def test_client_does_not_replace_the_files_of_the_broker(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    refused = run("certificates", "certs", *options)
    assert (refused.exit_code, refused.out) == (1, "")
    assert f"the broker and a client cannot both be '{options[-1]}'" in refused.error
    assert not (tmp_path / "certs").exists()


def test_expired_authority_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir()
    write(tmp_path / "certs", "ca", DevelopmentAuthority.create(days=0).issued)
    refused = run("certificates", "certs")
    assert refused.exit_code == 1
    assert "the authority in certs/ca.pem has expired: remove certs/ca.pem and certs/ca.key" in refused.error
    assert not (tmp_path / "certs" / "broker.pem").exists()


def test_name_of_a_host_that_no_certificate_can_have_is_refused(run: Run) -> None:
    refused = run("certificates", "certs", "--host", "bücher.example")
    assert refused.exit_code == 1
    assert "--host bücher.example, " in refused.error


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_authority_that_cannot_sign_is_not_replaced(run: Run, tmp_path: Path, name: str) -> None:
    run("certificates", "certs")
    (tmp_path / "certs" / name).write_bytes(b"nothing")
    refused = run("certificates", "certs")
    assert refused.exit_code == 1
    assert "certs/ca.pem and certs/ca.key are no authority that can sign" in refused.error
    (tmp_path / "certs" / name).unlink()
    assert name in run("certificates", "certs").error
