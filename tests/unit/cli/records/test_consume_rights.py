"""`conveyor consume` and `conveyor topic tail` need no right on a group, unless they read as a member of one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.clients.test_secure_testing import add_user
from tests.unit.cli.commands import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    with Broker(memory=True, security=True) as running:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", running.bootstrap_servers)
        yield running


def config(broker: Broker, directory: Path, user: str, password: str) -> str:
    """Return the path of a file by which commands connect as a user."""
    path = directory / f"{user}.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nssl.ca.location={broker.ca_file}\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={user}\nsasl.password={password}\n"
    )
    return str(path)


def test_right_to_read_the_topic_is_enough(run: Run, broker: Broker, tmp_path: Path) -> None:
    add_user(broker, "eve")
    admin = config(broker, tmp_path, broker.admin_user, broker.admin_password)
    eve = config(broker, tmp_path, "eve", "secret")
    assert run("--client-config", admin, "produce", "orders", given=b"one\ntwo\n").exit_code == 0
    assert run("--client-config", admin, "acl", "add", "User:eve", "read", "topic", "orders").exit_code == 0
    for command in (("consume", "orders", "--from", "earliest", "--exit"), ("topic", "tail", "orders", "--exit")):
        ended = run("--client-config", eve, *command)
        assert (ended.exit_code, ended.out, ended.error) == (0, "one\ntwo\n", "")
    ended = run("--client-config", eve, "consume", "orders", "--group", "billing", "--from", "earliest", "--exit")
    assert ended.exit_code == 1
    assert "no right to Describe Group" in ended.error
