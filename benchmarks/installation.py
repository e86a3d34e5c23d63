"""Conveyor as a user has it: its wheel in a virtual environment of its own, with what it needs to run and nothing else.

A developer's environment would start it more slowly: the checkout is found by a path file.
"""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_REPOSITORY = Path(__file__).parent.parent
_ENVIRONMENT = _REPOSITORY / ".cache" / "installation"


@cache
def installed_command() -> str:
    """The path of `conveyor`, of this checkout as it is now. The first time what it needs is downloaded."""
    python = str(_ENVIRONMENT / "bin" / "python")
    if not Path(python).exists():
        _run(sys.executable, "-m", "venv", str(_ENVIRONMENT))
    with tempfile.TemporaryDirectory(prefix="conveyor-wheel-") as directory:
        _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, str(_REPOSITORY))
        wheel = str(next(Path(directory).glob("*.whl")))
        _pip(python, "install", wheel)
        _pip(python, "install", "--no-deps", "--force-reinstall", wheel)
    return str(_ENVIRONMENT / "bin" / "conveyor")


def _pip(python: str, *arguments: str) -> None:
    _run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> None:
    """Raises CalledProcessError, with what the command has printed on the terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, env=environment)
