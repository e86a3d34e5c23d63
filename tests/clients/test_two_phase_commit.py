"""Two-phase commit of a database and a topic: whenever the sender and the broker are killed, the books balance."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import BrokerProcess

BANK = Path(__file__).parents[2] / "examples" / "bank" / "bank.py"
LEFT = {
    ("recovered",): "nothing",
    ("withdrawn",): "nothing",
    ("published", "kept"): "aborted",
    ("decided", "kept"): "committed",
    ("ended",): "nothing",
}
"""What is found after the kills, by the steps after which the sender and the next one are killed."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", "--set", "transactions.two_phase_commit_enable=true")
    process.start()
    yield process
    process.end()


def bank(broker: BrokerProcess, directory: Path, *arguments: str, dies_after: str = "") -> str:
    """Run a command of the example. Returns what it prints."""
    environment = os.environ | {
        "CONVEYOR_BOOTSTRAP": broker.kafka,
        "BANK_DIR": str(directory / "bank"),
        "BANK_DIES_AFTER": dies_after,
    }
    command = [sys.executable, str(BANK), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if dies_after else 0), done.stderr
    return done.stdout


def test_books_balance_when_the_sender_and_the_broker_are_killed(broker: BrokerProcess, tmp_path: Path) -> None:
    bank(broker, tmp_path, "open")
    sent = 0
    for steps, left in LEFT.items():
        for step in steps:
            bank(broker, tmp_path, "send", "1", dies_after=step)
            broker.kill()
            broker.start()
        assert bank(broker, tmp_path, "send", "0") == f"the transaction that was left here: {left}\n"
        sent += 10 * (steps[0] in ("decided", "ended"))
        expected = f"north {2_000 - sent} + on the way {sent} + south 0 = 2000 EUR\n"
        assert bank(broker, tmp_path, "books") == expected, steps
    bank(broker, tmp_path, "collect")
    assert bank(broker, tmp_path, "books") == f"north {2_000 - sent} + on the way 0 + south {sent} = 2000 EUR\n"


def test_transaction_is_committed_by_the_next_sender_while_the_broker_was_away(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The broker is killed before the sender can tell it the verdict. The sender repeats its request."""
    bank(broker, tmp_path, "open")
    bank(broker, tmp_path, "send", "1", dies_after="decided")
    assert bank(broker, tmp_path, "books") == "north 1990 + on the way 0 + south 0 = 1990 EUR\n"
    broker.kill()
    environment = os.environ | {"CONVEYOR_BOOTSTRAP": broker.kafka, "BANK_DIR": str(tmp_path / "bank")}
    with subprocess.Popen([sys.executable, str(BANK), "send", "1"], env=environment, text=True, stdout=-1) as sender:
        broker.start()
        printed, _ = sender.communicate(timeout=60)
    assert printed == "the transaction that was left here: committed\nAda has sent 10 EUR\n"
    assert bank(broker, tmp_path, "books") == "north 1980 + on the way 20 + south 0 = 2000 EUR\n"
