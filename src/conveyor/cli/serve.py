"""`conveyor serve`: run a broker until it is told to stop."""

import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from conveyor.kernel.errors import SettingsError
from conveyor.kernel.settings import Settings, from_sources
from conveyor.server.sources import environment_settings, file_settings

_DEFAULT_FILE = Path("conveyor.toml")


def serve(
    data_dir: Annotated[Path, typer.Option(help="Where records and metadata are kept.")] = Path("./conveyor-data"),
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Kafka clients connect [default: 127.0.0.1:9092].")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where HTTP clients connect [default: 127.0.0.1:8080].")
    ] = None,
    node_id: Annotated[int | None, typer.Option(help="This broker's number [default: 1].")] = None,
    rack: Annotated[str | None, typer.Option(help="Where this broker stands.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file [default: conveyor.toml, if it is there].")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as topics.segment_bytes=1048576."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow addresses that other machines reach, with no authentication.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a broker. Port 0 picks a free one.

    Prints one line when it accepts requests, and stops on SIGTERM or Ctrl-C, with everything on the disk.
    Settings come from flags, then the environment (CONVEYOR_TOPICS_SEGMENT_BYTES), then conveyor.toml.
    """
    flags: dict[str, object] = dict(map(_split, set_ or []))
    named = {"network.kafka": kafka, "network.http": http, "broker.node_id": node_id, "broker.rack": rack}
    flags |= {name: value for name, value in named.items() if value is not None}
    if insecure:
        flags["network.insecure"] = True
    settings = from_sources(
        flags, environment_settings(os.environ), file_settings(config or _DEFAULT_FILE, required=config is not None)
    )
    _log_to_stderr(log_level)
    run(settings, data_dir)


def run(settings: Settings, data_dir: Path) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingsError, StartupError."""
    import uvloop

    failure = uvloop.run(_serve(settings, data_dir))
    if failure is not None:
        raise SystemExit(f"conveyor: stopped by a bug: {failure!r}")


async def _serve(settings: Settings, data_dir: Path) -> BaseException | None:
    import asyncio
    import signal

    from conveyor.server.server import Server

    server = Server(settings, data_dir)
    await server.start()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, server.stopping.set)
    print(
        f"ready kafka={server.kafka_address} http=http://{server.http_address}"
        f" node={settings.broker.node_id} startup_ms={_process_age_ms()}",
        flush=True,
    )
    await server.stopping.wait()
    await server.stop()
    return server.failure


def _process_age_ms() -> int:
    """How long this process has run, the interpreter's own start included, where the system tells."""
    try:
        started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return int(time.process_time() * 1000)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    return max(0, int(age * 1000))


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"--set {text}: it takes NAME=VALUE, such as topics.segment_bytes=1048576")
    return name.strip(), value.strip()


def _log_to_stderr(level: str) -> None:
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise SettingsError(f"--log-level {level}: it is debug, info, warning or error")
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
