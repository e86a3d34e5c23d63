"""The examples do what their pages say: each command is run as it stands there, and prints what stands below it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.testing import Broker

ROOT = Path(__file__).parents[2]
OWN_TEST = "pipelines"
"""tests/pipeline/test_spark_pipelines.py gives this example a broker and a checkpoint of its own."""

PAGES = sorted(path for path in (ROOT / "examples").glob("*/README.md") if path.parent.name != OWN_TEST)
COMMANDS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    directory = str(tmp_path_factory.mktemp("bank"))
    with Broker(settings={"transactions.two_phase_commit_enable": True}) as broker:
        addresses = {"ORDERS_API": broker.http_url, "CONVEYOR_BOOTSTRAP": broker.bootstrap_servers}
        path = {"PATH": f"{COMMANDS}:{os.environ['PATH']}", "COLUMNS": "118"}
        yield os.environ | addresses | path | {"BANK_DIR": directory}


def steps(page: str) -> list[tuple[str, str]]:
    """Each command of a page, and what is printed below it."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [(line, shown) for block in blocks for line, shown in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block)]


def lines(printed: str) -> list[str]:
    """Without what differs from run to run: times, ages, where a dead letter lies, and which line comes first."""
    printed = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", printed)
    printed = re.sub(r'(_ms": )\d+', r"\1TIME", printed)
    printed = re.sub(r"\d+(ms|s)$", "AGE", printed, flags=re.MULTILINE)
    printed = re.sub(r" 0-\d+$", " ID", printed, flags=re.MULTILINE)
    return sorted(re.sub(r" +", " ", line) for line in printed.splitlines())


def of_customer(printed: str, name: str) -> list[str]:
    """In their order, which the key keeps."""
    return [line for line in printed.splitlines() if f"of {name}:" in line]


def run(command: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    out = subprocess.PIPE
    shell = ["bash", "-c", command]
    return subprocess.run(shell, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True, timeout=60)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_example_prints_what_its_page_says(environment: dict[str, str], path: Path) -> None:
    page = path.read_text().replace("http://127.0.0.1:8080", environment["ORDERS_API"])
    ran = 0
    for command, shown in steps(page):
        if command.startswith("conveyor serve"):
            continue
        done = run(command, environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        assert lines(done.stdout) == lines(shown), command
        if "payments" in command:
            assert of_customer(done.stdout, "Bob Martin") == of_customer(shown, "Bob Martin")
        ran += 1
    assert ran > 4
