"""Clusters of three brokers on this machine: Conveyor's with a ZooKeeper, and Kafka's in which each is a controller."""

import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import psutil

from benchmarks.installation import installed_command
from benchmarks.kafka.release import Release
from benchmarks.server import free_port
from benchmarks.wire import knows_itself
from conveyor.cli.zookeeper import wait_until_serving, zookeeper_command

BROKERS = 3
_START_S = 180
_PAUSE_S = 0.01
_HEAP = ("-Xmx1G", "-Xms1G")


@dataclass(frozen=True, slots=True)
class Commands:
    """How to start each broker, and where it answers; `others` run as well and are not brokers."""

    brokers: Sequence[Sequence[str]]
    addresses: Sequence[str]
    others: Sequence[psutil.Process] = ()


class ClusterKind(Protocol):
    """A system whose cluster is measured. policy: see `System`."""

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> str: ...

    @property
    def topic_settings(self) -> dict[str, str]: ...

    def prepare(self, directory: Path) -> Commands:
        """Ready an empty directory."""
        ...


@dataclass(frozen=True, slots=True)
class ConveyorCluster:
    """Conveyor with a ZooKeeper of its own."""

    policy: str
    name: str = "Conveyor"

    @property
    def topic_settings(self) -> dict[str, str]:
        return {"flush.policy": self.policy}

    def prepare(self, directory: Path) -> Commands:
        port = free_port()
        with (directory / "zookeeper.log").open("w") as log:
            zookeeper = subprocess.Popen(
                zookeeper_command(directory / "zookeeper", port), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until_serving(zookeeper, port)
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(BROKERS)]
        commands = [
            [
                installed_command(),
                "serve",
                f"--data-dir={directory / f'broker-{number}'}",
                f"--metadata=zookeeper://127.0.0.1:{port}/conveyor",
                f"--node-id={number}",
                f"--set=transactions.state_flush_policy={self.policy}",
                f"--kafka={address}",
                "--http=127.0.0.1:0",
            ]
            for number, address in enumerate(addresses, 1)
        ]
        return Commands(commands, addresses, [psutil.Process(zookeeper.pid)])


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Kafka with its defaults, three nodes that are controllers and brokers. It has no policy of flushing."""

    release: Release
    name: str = "Kafka"
    policy: str = "-"

    @property
    def topic_settings(self) -> dict[str, str]:
        return {}

    def prepare(self, directory: Path) -> Commands:
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(BROKERS)]
        controllers = [f"127.0.0.1:{free_port()}" for _ in range(BROKERS)]
        voters = ",".join(f"{number}@{address}" for number, address in enumerate(controllers, 1))
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        commands = []
        for number, (address, controller) in enumerate(zip(addresses, controllers, strict=True), 1):
            properties = directory / f"server-{number}.properties"
            properties.write_text(
                "\n".join(
                    (
                        "process.roles=broker,controller",
                        f"node.id={number}",
                        f"controller.quorum.voters={voters}",
                        f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}",
                        f"advertised.listeners=PLAINTEXT://{address}",
                        "inter.broker.listener.name=PLAINTEXT",
                        "controller.listener.names=CONTROLLER",
                        f"log.dirs={directory / f'broker-{number}'}",
                    )
                )
            )
            arguments = ("format", f"--cluster-id={identity}", f"--config={properties}")
            subprocess.run(self.release.command("kafka.tools.StorageTool", *arguments), check=True, capture_output=True)
            commands.append(self.release.command("kafka.Kafka", str(properties), options=_HEAP))
        return Commands(commands, addresses)


class RunningCluster:
    """The processes of a cluster."""

    def __init__(self, commands: Commands, directory: Path) -> None:
        self.addresses = list(commands.addresses)
        self.bootstrap_servers = ",".join(commands.addresses)
        self.directory = directory
        self._others = list(commands.others)
        self._commands = commands.brokers
        self._brokers = [self._started(number) for number in range(1, len(commands.brokers) + 1)]

    def wait_until_serving(self) -> None:
        ends = time.monotonic() + _START_S
        for address in self.addresses:
            while not _answers(address):
                if time.monotonic() > ends:
                    raise RuntimeError(f"the broker at {address} does not answer")
                time.sleep(_PAUSE_S)

    def start(self, number: int) -> None:
        """Start a killed broker again."""
        self._brokers[number - 1] = self._started(number)

    def _started(self, number: int) -> psutil.Popen:
        with (self.directory / f"console-{number}.log").open("a") as log:
            return psutil.Popen(list(self._commands[number - 1]), stdout=log, stderr=subprocess.STDOUT)

    def kill(self, number: int) -> None:
        """SIGKILL of a broker, by its id."""
        process = self._brokers[number - 1]
        process.kill()
        process.wait()

    def cpu_seconds(self) -> float:
        """Of all processes so far, the ZooKeeper included."""
        return sum(
            process.cpu_times().user + process.cpu_times().system
            for process in (*self._brokers, *self._others)
            if process.is_running()
        )

    def broker_bytes(self) -> int:
        """The resident memory of the brokers."""
        return sum(process.memory_info().rss for process in self._brokers if process.is_running())

    def end(self) -> None:
        for process in (*self._brokers, *self._others):
            with suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait()


@contextmanager
def running_cluster(kind: ClusterKind) -> Iterator[RunningCluster]:
    """Start a cluster; it is killed, and its data deleted, afterwards."""
    with TemporaryDirectory(prefix="conveyor-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        cluster = RunningCluster(kind.prepare(directory), directory)
        stack.callback(cluster.end)
        cluster.wait_until_serving()
        yield cluster


def _answers(address: str) -> bool:
    try:
        return knows_itself(address)
    except OSError:
        return False
