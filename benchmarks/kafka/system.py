"""Apache Kafka with its defaults: one node that is controller and broker, started as its own scripts start it."""

import subprocess
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kafka.release import Release
from benchmarks.server import free_port
from benchmarks.wire import knows_itself

_HEAP = ("-Xmx1G", "-Xms1G")
_COLLECTOR = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_MANAGEMENT = (
    "-Dcom.sun.management.jmxremote",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
)
_LOGGING = Path(__file__).with_name("log4j2.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kafka:
    """The system to compare with."""

    release: Release
    name: str = "Kafka"
    policy: str = "-"

    @property
    def topic_settings(self) -> dict[str, str]:
        return {}

    def answers(self, address: str) -> bool:
        return knows_itself(address)

    def prepare(self, directory: Path, address: str) -> list[str]:
        """Format the storage, as is done once in a node's life; the start is measured without it."""
        properties = directory / "server.properties"
        properties.write_text(_properties(directory / "data", address))
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ("format", "--standalone", f"--cluster-id={identity}", f"--config={properties}")
        subprocess.run(self.release.command("kafka.tools.StorageTool", *arguments), check=True, capture_output=True)
        logs = directory / "logs"
        logs.mkdir()
        options = (
            *_HEAP,
            *_COLLECTOR,
            f"-Xlog:gc*:file={logs}/kafkaServer-gc.log:time,tags:filecount=10,filesize=100M",
            *_MANAGEMENT,
            f"-Dkafka.logs.dir={logs}",
            f"-Dlog4j2.configurationFile={_LOGGING}",
        )
        return self.release.command("kafka.Kafka", str(properties), options=options)


def _properties(data: Path, address: str) -> str:
    """What the release's own server.properties sets besides defaults, with this run's ports and directory."""
    controller = f"127.0.0.1:{free_port()}"
    return "\n".join(
        (
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.bootstrap.servers={controller}",
            f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}",
            f"advertised.listeners=PLAINTEXT://{address},CONTROLLER://{controller}",
            "inter.broker.listener.name=PLAINTEXT",
            "controller.listener.names=CONTROLLER",
            "socket.send.buffer.bytes=102400",
            "socket.receive.buffer.bytes=102400",
            f"log.dirs={data}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "share.coordinator.state.topic.replication.factor=1",
            "share.coordinator.state.topic.min.isr=1",
        )
    )
