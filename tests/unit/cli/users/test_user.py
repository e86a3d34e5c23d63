"""`conveyor user`, on a broker in memory: who is added can log in, until the user is removed."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from conveyor.testing import Broker
from tests.unit.cli.commands import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Yield the addresses of the plain listener, which commands use, and of the one where users log in."""
    with Broker(memory=True, settings={"network.kafka": "127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}) as broker:
        plain, login = broker.kafka_addresses.values()
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", plain)
        yield plain, login


def may_log_in(address: str, user: str, password: str) -> bool:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        settings = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        admin = AdminClient({"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", **settings})
        try:
            admin.list_topics(timeout=2)
        except KafkaException:
            return False
    return True


def test_user_is_added_changed_and_removed(run: Run, addresses: tuple[str, str]) -> None:
    _, login = addresses
    assert run("user", "list").out == "no users yet: add one with 'conveyor user add NAME'\n"
    assert run("user", "add", "alice", given=b"secret\n").out == "added user alice\n"
    assert may_log_in(login, "alice", "secret")
    assert not may_log_in(login, "alice", "Secret")
    assert "user 'alice' exists" in run("user", "add", "alice", given=b"other\n").error
    assert may_log_in(login, "alice", "secret")
    assert run("user", "password", "alice", given="pässword \n".encode()).out == "changed the password of alice\n"
    assert may_log_in(login, "alice", "pässword ")
    assert not may_log_in(login, "alice", "secret")
    [row] = json.loads(run("user", "list", "--json").out)
    assert row == {"user": "alice", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}
    assert run("user", "remove", "alice").out == "removed user alice\n"
    assert not may_log_in(login, "alice", "pässword ")


def test_what_cannot_be_changed_is_told(run: Run, addresses: tuple[str, str]) -> None:
    for command in ("password", "remove"):
        assert "unknown user 'eve'" in run("user", command, "eve", given=b"secret\n").error
    for given in (b"", b"\n"):
        assert "nothing has been changed" in run("user", "add", "eve", given=given).error
    assert "a user's name has 1 to 255 bytes" in run("user", "add", "e" * 256, given=b"secret\n").error
    assert run("user", "list").out.startswith("no users yet")
