"""Fixtures of the commands' tests."""

import os

import pytest

from conveyor.testing import Broker
from tests.unit.cli.commands import Run, runner


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command as a shell does, with no settings in the environment."""
    for name in [name for name in os.environ if name.startswith("CONVEYOR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")
    return runner(monkeypatch, capfd)


@pytest.fixture
def run_on_broker(run: Run, memory_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the same function, with the address of a running broker."""
    monkeypatch.setenv("CONVEYOR_BOOTSTRAP", memory_broker.bootstrap_servers)
    return run
