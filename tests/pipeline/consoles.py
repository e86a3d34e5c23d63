"""The examples of a page, run as a reader would run them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.pipeline.pipelines import pipeline

PAGES = Path(__file__).parents[2] / "docs" / "jobs"


def run_example(page: str) -> None:
    """Write the TOML files of a page into the present directory, and run its console; what it prints must be what the
    page says, if the page says it. CONVEYOR_BOOTSTRAP names the broker.

    The commands of `conveyor pipeline` run in this process, on the session that the test has.
    """
    text = (PAGES / page).read_text()
    for name, content in re.findall(r"^```toml\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        Path(name).write_text(content)
    for console in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for entry in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
            command, printed = _split(entry)
            shown = _run(command)
            assert not printed or shown == printed, command


def _split(entry: str) -> tuple[str, str]:
    """The command, which may have several lines, and what it prints."""
    lines = entry.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        command = "".join(lines[:count])
        if not command.endswith("\\\n") and command.count("'") % 2 == 0:
            return command, "".join(lines[count:])
    raise AssertionError(f"the command has no end: {entry}")


def _run(command: str) -> str:
    if command.startswith("conveyor pipeline "):
        words = shlex.split(command.replace("\\\n", " "))[2:]
        master = () if words[0] in ("status", "stop") else ("--master", "local[2]")
        return pipeline(*words, *master)
    shell = re.sub(r"(^|\| )conveyor ", rf"\1{shlex.quote(sys.executable)} -m conveyor.cli.main ", command)
    done = subprocess.run(["sh", "-e", "-c", shell], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ""
