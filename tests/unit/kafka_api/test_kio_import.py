"""kio is loaded without Hypothesis, and Hypothesis remains usable. Most cases run in a process of their own."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conveyor.kafka_api.wire.kio_import import HidingFinder

pytestmark = pytest.mark.slow

STARTED = """
import sys
finders = list(sys.meta_path)
from conveyor.testing import Broker
with Broker() as broker:
    assert broker.bootstrap_servers
assert not [each for each in sys.modules if each.partition(".")[0] == "hypothesis"]
assert sys.meta_path == finders
"""

USABLE_AFTERWARDS = """
from hypothesis import given, strategies
@given(strategies.integers())
def check(number): assert number == number
check()
"""

LOADED_BEFORE = """
import hypothesis.strategies
from conveyor.testing import Broker
import sys
with Broker(): pass
assert sys.modules["hypothesis"] is hypothesis
"""


def run(program: str, directory: Path) -> None:
    """Run a program in the current environment, which has Hypothesis, without Hypothesis's pytest plugin."""
    ran = subprocess.run([sys.executable, "-c", program], cwd=directory, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_broker_starts_without_hypothesis_and_leaves_no_directory(tmp_path: Path) -> None:
    run(STARTED, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", [STARTED + USABLE_AFTERWARDS, LOADED_BEFORE + USABLE_AFTERWARDS])
def test_hypothesis_stays_usable(program: str, tmp_path: Path) -> None:
    run(program, tmp_path)


def test_hypothesis_is_hidden_from_one_thread_only() -> None:
    finder = HidingFinder()
    with pytest.raises(ModuleNotFoundError):
        finder.find_spec("hypothesis", None)
    assert finder.find_spec("kio", None) is None
    with ThreadPoolExecutor(1) as other_thread:
        assert other_thread.submit(finder.find_spec, "hypothesis", None).result() is None
