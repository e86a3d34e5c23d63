"""A standalone Spark cluster on this machine: a master and two workers, whose Python lacks Conveyor."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pyspark_conveyor.spark.java import java_home

PYTHON = "python-of-the-cluster"
"""A command that driver and workers find on their PATHs, each another one."""

WITHOUT_PACKAGES = "python-without-packages"
"""A command of the workers that has not even what Spark needs."""

_ON_NODES = ("pyarrow", "pandas", "numpy", "dateutil", "pytz", "six", "tzdata")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PATIENCE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """Its address, and the environment of programs that use it."""

    master: str
    environment: dict[str, str]


@contextmanager
def running_standalone(directory: Path) -> Iterator[Standalone]:
    """Start a master and two workers of one core each; their Python has only what Spark needs."""
    nodes, driver = directory / "nodes", directory / "driver"
    bare = _bare_python(directory / "bare")
    _command(nodes / PYTHON, f"{bare}")
    _command(nodes / WITHOUT_PACKAGES, f"{bare} -S")
    _command(driver / PYTHON, sys.executable)
    settings = {"JAVA_HOME": str(java_home()), "SPARK_HOME": str(_spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    system = {"PATH": os.defpath, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    on_nodes = settings | system | {"PATH": f"{nodes}:/usr/local/bin:/usr/bin:/bin"}
    with ExitStack() as processes:
        log = directory / "master.log"
        master_class = "org.apache.spark.deploy.master.Master"
        _start(processes, log, on_nodes, master_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = _told_address(log)
        for number in range(2):
            own = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker-{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *own, master]
            _start(processes, directory / f"worker-{number}.log", on_nodes, *worker)
        path = f"{driver}:{os.environ['PATH']}"
        yield Standalone(
            master=master, environment=dict(os.environ) | system | {"PATH": path, "PYSPARK_PYTHON": PYTHON}
        )


def _start(processes: ExitStack, log: Path, environment: dict[str, str], *command: str) -> None:
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(_spark_home() / "bin" / "spark-class"), *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
        )
    processes.callback(process.wait)
    processes.callback(process.terminate)


def _told_address(log: Path) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while (found := _MASTER.search(log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found.group(1)


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _command(path: Path, interpreter: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n')
    path.chmod(0o755)


def _bare_python(directory: Path) -> Path:
    """Make an environment of this Python with what Spark needs for Arrow, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", directory], check=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    for name in _ON_NODES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue  # Not all versions of pandas need each of them.
        module = Path(spec.origin)
        installed = module.parent if module.name == "__init__.py" else module
        (packages / installed.name).symlink_to(installed)
        libraries = installed.with_name(f"{name}.libs")
        if libraries.is_dir():
            (packages / libraries.name).symlink_to(libraries)
    return directory / "bin" / "python"
