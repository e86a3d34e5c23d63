"""The commands and examples of docs/jobs/archive.md do what the page says."""

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conveyor.cli.app import app
from conveyor.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "jobs" / "archive.md"


def run(line: str, broker: Broker) -> str:
    """Run a line of the page, `conveyor ...` or `echo TEXT | conveyor ...`, and return what it printed."""
    before, _, command = line.rpartition(" | ")
    words = shlex.split(command)
    assert words[0] == "conveyor"
    typed = shlex.split(before)[1] + "\n" if before else None
    done = CliRunner().invoke(
        app, [*words[1:], "--bootstrap", broker.bootstrap_servers], input=typed, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("spark")
def test_the_page_of_the_archive_job_is_true(broker: Broker, tmp_path: Path) -> None:
    text = PAGE.read_text().replace("/data/", f"{tmp_path}/")
    names: dict[str, object] = {}
    printed = StringIO()
    for language, block in re.findall(r"^```(console|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            with redirect_stdout(printed):
                exec(block, names)
            continue
        for line, output in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            shown = run(line.replace("orders", "archived-orders"), broker).replace("archived-orders", "orders")
            assert not output or shown == output, line
    shown = re.sub(r" *\| *", "|", printed.getvalue())
    assert "|1|lamp|19.5|" in shown
    assert "|not JSON|JSON is malformed" in shown
    assert "2 rows, as Delta reads them" in shown
