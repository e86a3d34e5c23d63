"""`conveyor zookeeper`: a ZooKeeper for development, from Spark's own jars and the Java that Spark runs on."""

import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from conveyor.cli.terminal.kafka_client import ClientError

HOST = "127.0.0.1"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_S = 60.0
_POLL_S = 0.05
_STOP_S = 10.0
_CONFIG = """\
# tickTime: the shortest session timeout that ZooKeeper grants is twice this, in ms.
tickTime=500
dataDir={data_dir}
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
4lw.commands.whitelist=ruok
maxClientCnxns=0
"""
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# It reports an error for a `ruok` that it answers while it still starts.
logger.command.name = org.apache.zookeeper.server.ServerCnxn
logger.command.level = off
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
"""


def zookeeper(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Directory for its data [default: a temporary one].")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 2181,
) -> None:
    """Run a ZooKeeper for development (needs conveyor[spark]).

    One server without replicas, reachable from this machine only. Ctrl-C stops it.
    """
    with tempfile.TemporaryDirectory(prefix="conveyor-zookeeper-") as temporary:
        directory = data_dir or Path(temporary)
        _check_port(port)
        command = zookeeper_command(directory, port)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # In a session of its own, Ctrl-C reaches this command only, which then stops the server.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_until_serving(process, port)
            typer.echo(f"ZooKeeper listens on {HOST}:{port}, data in {directory}. Start a broker with")
            typer.echo(f"  conveyor serve --metadata zookeeper://{HOST}:{port}/conveyor")
            process.wait()
            raise ClientError(f"ZooKeeper has ended with code {process.returncode}")
        except KeyboardInterrupt:
            typer.echo("stopped")
        finally:
            _stop(process)


def zookeeper_command(directory: Path, port: int) -> list[str]:
    """Write the configuration into the data directory. Returns the command that runs the server.

    Raises ClientError if the extra `spark` is not installed, or the directory cannot be written.
    """
    from pyspark_conveyor.pipeline_errors import PipelineError
    from pyspark_conveyor.spark.java import find_java

    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ClientError("pyspark not installed, whose jars include ZooKeeper: pip install 'conveyor[spark]'")
    try:
        java = find_java()
    except PipelineError as error:
        raise ClientError(str(error)) from error
    config, logging = directory / "zoo.cfg", directory / "log4j2.properties"
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)  # The ZooKeeper stores the secret of the cluster.
        config.write_text(_CONFIG.format(data_dir=directory.resolve(), port=port, host=HOST))
        logging.write_text(_LOGGING)
    except OSError as error:
        raise ClientError(f"data directory {directory}: {error.strerror}: choose another with --data-dir") from error
    return [
        str(java),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-Dzookeeper.jmx.log4j.disable=true",
        f"-Dlog4j2.configurationFile={logging.resolve().as_uri()}",
        "-cp",
        str(Path(spark.origin).parent / "jars" / "*"),
        _MAIN,
        str(config),
    ]


def wait_until_serving(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Raise ClientError if the server ends, or does not serve within a minute."""
    ends = time.monotonic() + _START_S
    while not _is_serving(port):
        if process.poll() is not None:
            raise ClientError(f"ZooKeeper did not start: it has ended with code {process.returncode}")
        if time.monotonic() > ends:
            raise ClientError(f"ZooKeeper does not answer on port {port}")
        time.sleep(_POLL_S)


def _is_serving(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
    except OSError:
        return False


def _check_port(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise ClientError(f"port {port}: {error.strerror}: choose another with --port") from error


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
