"""Runs commands inside the test's process."""

import io
import os
import re
import sys
from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import pytest

from conveyor.cli.main import main


class Ended(NamedTuple):
    """The exit code and output of a command."""

    exit_code: int
    out: str
    error: str


Run = Callable[..., Ended]

_LOGGED = re.compile(r"^%\d\|.*\n", re.MULTILINE)
"""What librdkafka logs. No command does; clients of earlier tests may, whose brokers have stopped."""


def runner(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns its exit code and output. What it sets in its environment ends with it."""

    def run(*arguments: str, given: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["conveyor", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with patch.dict(os.environ), pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, _LOGGED.sub("", captured.err))

    return run
