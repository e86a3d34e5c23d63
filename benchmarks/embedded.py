"""A broker in a test's process, in an environment that has Hypothesis, as the test environments of users do."""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec

_PROGRAM = """
import json, resource, time
began = time.perf_counter()
from conveyor.testing import Broker
with Broker():
    ready_ms = (time.perf_counter() - began) * 1000
    print(json.dumps([ready_ms, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """ready_ms: from the first import until `Broker()` accepts requests. peak_bytes: what the process took at most."""

    ready_ms: float
    peak_bytes: int


def start_embedded() -> Embedded:
    """Start a broker in a fresh process and an empty directory. Raises RuntimeError where Hypothesis is missing."""
    if find_spec("hypothesis") is None:
        raise RuntimeError("this environment has no Hypothesis: run the benchmark in the developers' environment")
    with tempfile.TemporaryDirectory(prefix="conveyor-embedded-") as directory:
        command = [sys.executable, "-c", _PROGRAM]
        ran = subprocess.run(command, check=True, cwd=directory, stdout=subprocess.PIPE, text=True)
    ready_ms, peak_bytes = json.loads(ran.stdout)
    return Embedded(ready_ms=ready_ms, peak_bytes=peak_bytes)
