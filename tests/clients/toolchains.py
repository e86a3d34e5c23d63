"""Builds the programs in other languages, once for each state of their sources, outside of what git tracks."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest

from tests.clients.programs import ROOT, Program

SOURCES = Path(__file__).parent
CACHE = ROOT / ".cache" / "clients"
BUILD_SECONDS = 280


def require(package: str, *tools: str) -> None:
    """Skip the test where tools are missing, and say which; fail it in CI, which has to install them."""
    missing = [each for each in tools if shutil.which(each) is None]
    if not missing:
        return
    unavailable(f"{' and '.join(missing)} not installed: apt-get install {package}")


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a step of a build. Raises AssertionError with what it printed."""
    settings = os.environ | dict(environment or {})
    ended = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"


def built(name: str, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """The folder that `build` has filled from these sources, which lie in it; one that is there already is taken."""
    files = sorted(sources)
    digest = sha256(b"\0".join(part for each in files for part in (each.name.encode(), each.read_bytes())))
    place = CACHE / name / digest.hexdigest()[:16]
    place.parent.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes, and Maven's downloads are not safe from each other.
    with (CACHE / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _fill(place, files, build)
    return place


def _fill(place: Path, files: Iterable[Path], build: Callable[[Path], None]) -> None:
    with TemporaryDirectory(dir=place.parent) as temporary:
        folder = Path(temporary) / "build"
        folder.mkdir()
        for each in files:
            shutil.copy(each, folder)
        build(folder)
        folder.rename(place)


def python_program(name: str) -> Program:
    return Program([sys.executable, "-m", f"tests.clients.python.{name}"])


@cache
def quix_python() -> Path:
    """A Python of its own for Quix Streams, which has its own wishes for the versions of its packages."""

    def build(folder: Path) -> None:
        run([sys.executable, "-m", "venv", "environment"], folder)
        install = ["-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        run([f"{folder}/environment/bin/python", *install, "-r", "requirements.txt"], folder)

    version = ".".join(map(str, sys.version_info[:2]))
    locked = SOURCES / "python" / "quix" / "requirements.txt"
    return built(f"quix-{version}", [locked], build) / "environment" / "bin" / "python"


@cache
def go_program() -> Program:
    require("golang-go", "go")
    printed = subprocess.run(["go", "version"], cwd=SOURCES, capture_output=True, text=True, check=True).stdout
    version = re.search(r"go1\.(\d+)", printed)
    if version is None or int(version.group(1)) < 21:
        unavailable(f"Go 1.21 is the oldest that fetches the one that go.mod names; here is {printed.strip()}")

    def build(folder: Path) -> None:
        run(["go", "build", "-o", "franz", "."], folder, {"GOFLAGS": "-mod=readonly"})

    place = built("go", (SOURCES / "go").iterdir(), build)
    return Program([str(place / "franz")])


@cache
def javascript_program(script: str) -> Program:
    """A script run by the Node that the lock file names, or by the system's where npm has none for this machine."""
    require("npm", "node", "npm")

    def build(folder: Path) -> None:
        run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)

    place = built("javascript", (SOURCES / "javascript").iterdir(), build)
    locked = sorted((place / "node_modules").glob("node-*/bin/node"))
    return Program([str(locked[0]) if locked else "node", str(place / script)])


@cache
def java_jars() -> Path:
    """Every jar that pom.xml names, and what they need."""
    return _jars("java-jars", SOURCES / "java" / "pom.xml")


@cache
def spark_jars() -> Path:
    """The jars of Spark's own connector."""
    return _jars("spark-jars", SOURCES / "java" / "spark" / "pom.xml")


@cache
def streams_jars() -> Path:
    """The jars of Kafka Streams' examples."""
    return _jars("streams-jars", SOURCES / "java" / "streams" / "pom.xml")


@cache
def connect_jars() -> Path:
    """Kafka Connect's worker, its connectors of files, and MirrorMaker."""
    return _jars("connect-jars", SOURCES / "java" / "connect" / "pom.xml")


def connect_command(main: str) -> list[str]:
    """Runs a class with a `main` of Kafka Connect, which logs as simplelogger.properties says."""
    return java_command(main, SOURCES / "java" / "connect", connect_jars() / "*")


def _jars(name: str, pom: Path) -> Path:
    require("maven", "mvn")

    def build(folder: Path) -> None:
        run(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"], folder)

    return built(name, [pom], build)


def java_program() -> Program:
    return java_class("Client")


@cache
def java_class(main: str) -> Program:
    """A class with a `main` of ours."""
    require("default-jdk-headless", "java", "javac")
    jars = java_jars()

    def build(folder: Path) -> None:
        run(["javac", "-Xlint:all", "-Werror", "-cp", f"{jars}/*", *map(str, folder.glob("*.java"))], folder)

    place = built("java", (SOURCES / "java").glob("*.*"), build)
    return java_tool(main, place)


def java_tool(main: str, *folders: Path) -> Program:
    """A class with a `main`, of the jars or of one of the folders."""
    return Program(java_command(main, *folders, java_jars() / "*"))


def java_command(main: str, *path: Path) -> list[str]:
    """Runs a class with a `main`, found on this class path."""
    require("default-jre-headless", "java")
    # Short-lived programs start in half the time when they are not compiled to the last.
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    return ["java", *quick, "-cp", ":".join(map(str, path)), main]
