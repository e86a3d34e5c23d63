"""Brokers, and applications of others that work with them: each is a process that a test may kill."""

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.clients.programs import ROOT
from tests.processes import BrokerProcess

Found = TypeVar("Found")
WAIT_SECONDS = 180
PROBE_PAUSE_S = 0.05
SHOWN_CHARACTERS = 10_000
_MOVED = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TRANSPORT,
)


class Killable(Protocol):
    """A broker that is killed and started again; or a cluster, one broker of which is."""

    @property
    def bootstrap_servers(self) -> str: ...

    def kill(self) -> None: ...

    def start(self) -> object: ...


class Application:
    """A program that serves or works until it is ended. What it prints is appended to a log."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._bytes_before = 0

    def start(self) -> None:
        with self._log.open("a") as log:
            self._bytes_before = log.tell()
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """SIGKILL: no chance to commit or to say goodbye. An application that has ended stays as it is."""
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """What it has printed since its last start."""
        return self._log.read_bytes()[self._bytes_before :].decode(errors="replace")

    def await_line(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed a line that matches."""
        return until(lambda: re.search(pattern, self.log(), re.MULTILINE), pattern)


class Processes:
    """The processes of one test, and the folder of their files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[BrokerProcess | Application] = []
        self._logs: list[Path] = []

    def broker(self, name: str = "broker") -> BrokerProcess:
        """Start a broker."""
        place = self.folder / name
        place.mkdir()
        self._logs.append(place / "broker.log")
        broker = BrokerProcess(place / "data")
        self._processes.append(broker)
        return broker.start()

    def application(self, name: str, command: list[str]) -> Application:
        """Start an application."""
        self._logs.append(self.folder / f"{name}.log")
        application = Application(command, self._logs[-1])
        self._processes.append(application)
        application.start()
        return application

    def properties(self, name: str, settings: dict[str, str]) -> str:
        """Write a file of settings as Java reads them. Returns its path."""
        return str(write_properties(self.folder / f"{name}.properties", settings))

    def clear(self) -> None:
        """Kill all processes, and print the ends of their logs: pytest shows them if the test has failed."""
        for process in reversed(self._processes):
            process.kill()
        for log in self._logs:
            print(f"--- {log.relative_to(self.folder)}\n{log.read_text(errors='replace')[-SHOWN_CHARACTERS:]}")


def write_properties(file: Path, settings: Mapping[str, str]) -> Path:
    """Write settings as Java reads them. Returns the file."""
    escaped = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in settings.items()}
    file.write_text("".join(f"{key}={value}\n" for key, value in escaped.items()))
    return file


def bounds_of(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition and its end."""
    first, end = _following(lambda: consumer.get_watermark_offsets(place, WAIT_SECONDS), f"the bounds of {place}")
    return first, end


def committed_of(consumer: Consumer, places: list[TopicPartition]) -> list[int]:
    """Return the offsets that the consumer's group has committed."""
    found = _following(lambda: consumer.committed(places, WAIT_SECONDS), f"the committed offsets of {places}")
    return [place.offset for place in found]


def _following(ask: Callable[[], Any], wanted: str) -> Any:
    """Ask until no broker refuses because it no longer leads: librdkafka leaves that to its user here."""

    def look() -> Any:
        try:
            return ask()
        except KafkaException as failure:
            if failure.args[0].code() not in _MOVED:
                raise
            return None

    return until(look, wanted)


def until(look: Callable[[], Found | None], wanted: str, seconds: float = WAIT_SECONDS) -> Found:
    """Look again and again until something true is found. Raises AssertionError when the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{wanted}: not after {seconds} s"
        time.sleep(PROBE_PAUSE_S)
    return found
