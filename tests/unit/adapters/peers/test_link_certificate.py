"""The certificate for links between brokers: one for each process, with a key that no other start has."""

import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.kernel.errors import StartupError


def test_each_process_has_one_certificate_and_each_start_another_one() -> None:
    assert link_certificate() is link_certificate()
    assert link_certificate().der != link_certificate.__wrapped__().der


def test_library_that_makes_it_is_not_loaded() -> None:
    program = (
        "import sys; from conveyor.adapters.peers.link_certificate import link_certificate; link_certificate();"
        "sys.exit(any(name.startswith('cryptography') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    "command", ["echo it is broken >&2; echo badly >&2; exit 1", "exit 1", "echo >&2; exit 1", "echo a word"]
)
def test_failure_is_one_line_that_says_what_is_missing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(StartupError, match="no certificate for the links between brokers could be made: ") as failed:
        link_certificate.__wrapped__()
    assert ("badly" in str(failed.value)) is ("badly" in command)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(StartupError, match="No such file"):
        link_certificate.__wrapped__()
