"""`conveyor serve`: run a broker until SIGTERM or Ctrl-C."""

import gc
import logging
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conveyor.cli.terminal.process_age import process_age_ms
from conveyor.kernel.errors import ConveyorError, SettingsError
from conveyor.settings.sources import FILE_VARIABLE, FLAGS, environment_settings, file_settings
from conveyor.settings.tree import Settings, from_sources

if TYPE_CHECKING:  # Loaded late; see `_serve`.
    from conveyor.server.server import Server

Announce = Callable[["Server", int], None]
"""Takes the broker and how many milliseconds its start has taken."""

_DEFAULT_FILE = Path("conveyor.toml")
_MADE_BETWEEN_COLLECTIONS = 10_000
"""A few requests reach Python's default of 700, although reference counting frees nearly all of their objects."""
_DESCRIPTION = """\
Run a broker. Port 0 picks a free port.

The broker prints one line when it accepts requests. SIGTERM or Ctrl-C stops it, after it has written
everything to the disk. A flag takes precedence over the environment (CONVEYOR_DATA_DIR for --data-dir,
and likewise for every flag; CONVEYOR_TOPICS_SEGMENT_BYTES for topics.segment_bytes), and the
environment over conveyor.toml.
"""


def serve(arguments: Sequence[str]) -> None:
    """Run a broker with these arguments. Raises SettingsError, StartupError; exits with 2 if they are invalid."""
    options = _parser().parse_args(arguments)
    flags: dict[str, object] = dict(map(_split, options.set))
    own_flags = {name: getattr(options, name.partition(".")[2]) for name in FLAGS}
    flags |= {name: value for name, value in own_flags.items() if value is not None}
    _check_no_password(str(flags.get("broker.metadata", "")))
    if options.kafka is not None:
        flags["network.kafka"] = ",".join(options.kafka)
    config = options.config or os.environ.get(FILE_VARIABLE)
    file = file_settings(Path(config or _DEFAULT_FILE), required=config is not None)
    settings = from_sources(flags, environment_settings(os.environ), file)
    log_to_stderr(settings.broker.log_level)
    if settings.broker.workers > 1:
        from conveyor.cli.supervise import supervise

        return supervise(settings)
    run(settings, Path(settings.broker.data_dir), _announce)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="conveyor serve", description=_DESCRIPTION, formatter_class=_Formatter, add_help=False, allow_abbrev=False
    )
    add = parser.add_argument
    add("--data-dir", metavar="PATH", help="Directory for records and metadata [default: ./conveyor-data].")
    add(
        "--kafka",
        metavar="[NAME://]HOST:PORT",
        action="append",
        help="Address for Kafka clients; can be repeated, as SSL://HOST:PORT for clients that connect by TLS"
        " [default: 127.0.0.1:9092].",
    )
    add(
        "--http",
        metavar="HOST:PORT",
        help="Address for HTTP clients; https://HOST:PORT for TLS [default: 127.0.0.1:8080].",
    )
    add("--cert-file", metavar="PATH", help="Certificate (PEM) for clients that connect by TLS.")
    add("--key-file", metavar="PATH", help="Key (PEM) of that certificate.")
    add("--peer", metavar="HOST:PORT", help="Address for other brokers [default: a free port on the host of --kafka].")
    add("--node-id", metavar="NUMBER", type=int, help="Number of this broker [default: 1].")
    add(
        "--gateway",
        action="store_const",
        const=True,
        help="Hold no partitions: serve REST by requests to the other brokers. Needs --metadata.",
    )
    add("--rack", metavar="NAME", help="Rack of this broker.")
    add(
        "--metadata",
        metavar="ADDRESS",
        help="Where the metadata is: embedded, or zookeeper://host:2181/path [default: embedded].",
    )
    add(
        "--workers",
        metavar="NUMBER",
        type=int,
        help="Brokers on this machine, to use that many of its cores; their ports follow those of --kafka and --http"
        " [default: 1].",
    )
    add("--config", metavar="PATH", help="Settings file [default: conveyor.toml, if it exists].")
    add(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="Any setting, such as topics.segment_bytes=1048576.",
    )
    add(
        "--insecure",
        action="store_const",
        const=True,
        help="Allow other machines to connect without authentication.",
    )
    add("--token-file", metavar="PATH", help="File of bearer tokens, one per line; HTTP clients must send one of them.")
    add("--log-level", metavar="LEVEL", type=str.lower, help="debug, info, warning or error [default: info].")
    add("--help", action="help", help="Show this message and exit.")
    return parser


class _Formatter(RawDescriptionHelpFormatter):
    """Begins with `Usage`, as the help of the other commands does."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: ")


def run(settings: Settings, data_dir: Path, announce: Announce) -> None:
    """Serve until SIGTERM or SIGINT. announce: called when the broker accepts requests.

    Raises SettingsError, StartupError; StorageFailure if another broker has taken the place of this one.
    """
    gc.disable()  # Until the broker is ready, hardly any object becomes garbage.
    try:
        import uvloop

        failure = uvloop.run(_serve(settings, data_dir, announce))
    finally:
        gc.enable()
    if failure is not None:
        raise SystemExit(f"conveyor: stopped by a bug: {failure!r}")


async def _serve(settings: Settings, data_dir: Path, announce: Announce) -> BaseException | None:
    # Imported here, with garbage collection disabled: these imports take most of the time until the broker is ready.
    import asyncio
    import signal

    from conveyor.server.server import Server, raise_file_limit

    raise_file_limit()
    server = Server(settings, data_dir)
    await server.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopping.set)
    announce(server, process_age_ms())
    await server.use_kernel_syncs()
    gc.freeze()
    gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)
    gc.enable()
    await server.stopping.wait()
    await server.stop()
    if isinstance(server.failure, ConveyorError):
        raise server.failure
    return server.failure


def _announce(server: "Server", startup_ms: int) -> None:
    print(
        f"ready kafka={server.listeners} http={server.listeners.http_url()}"
        f" node={server.settings.broker.node_id} startup_ms={startup_ms}",
        flush=True,
    )


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise SettingsError(f"--set {text}: expected NAME=VALUE, such as topics.segment_bytes=1048576")
    return name.strip(), value.strip()


def _check_no_password(metadata: str) -> None:
    """Raise SettingsError for the address of a ZooKeeper with a password, which is not repeated."""
    if "@" in metadata.partition("://")[2].partition("/")[0]:
        raise SettingsError(
            "--metadata has a password, which other users of the machine can see: set broker.metadata in conveyor.toml,"
            " or CONVEYOR_METADATA in the environment"
        )


def log_to_stderr(level: str, origin: str = "") -> None:
    """Write the log to standard error. origin: what each line says before its module."""
    text = f"%(asctime)s %(levelname)s {origin}%(name)s %(message)s"
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=text)
