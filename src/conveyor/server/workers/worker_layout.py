"""Divides one data directory and one set of settings among workers.

    <data>/workers.sqlite   their metadata
    <data>/metadata.sock    where the supervisor serves it; see `socket_path`
    <data>/worker-<n>       the data directory of broker n, 1 to `broker.workers`

Worker n listens at the configured ports plus n - 1, or at free ports if the configured port is 0. Links between workers
are on loopback. Everything else is the same for all.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.server.addresses import Address, parse_address
from conveyor.server.listeners import split_listeners
from conveyor.settings.tree import EMBEDDED, Settings

_SOCKET_NAME = "metadata.sock"
_MAX_SOCKET_PATH_BYTES = 100
"""Of 108 on Linux and 104 on macOS, with the final zero."""
_ANY_PORT = "127.0.0.1:0"
_WORKER_NAME = re.compile(r"worker-([1-9][0-9]*)")
_MAX_PORT = 65_535


def worker_directory(data_dir: Path, number: int) -> Path:
    return data_dir / f"worker-{number}"


def worker_settings(settings: Settings, number: int, metadata: str) -> Settings:
    """Return the settings of one worker. metadata: where the supervisor serves the store."""
    broker, network, groups = settings.broker, settings.network, settings.groups
    transactions = settings.transactions
    return replace(
        settings,
        broker=replace(
            broker,
            workers=1,
            node_id=number,
            metadata=metadata,
            data_dir=str(worker_directory(Path(broker.data_dir), number)),
        ),
        network=replace(
            network,
            kafka=_shifted(network.kafka, "network.kafka", number),
            http=_shifted(network.http, "network.http", number),
            peer=_ANY_PORT,
            advertised=_shifted(network.advertised, "network.advertised", number),
        ),
        groups=replace(groups, offsets_replication_factor=min(groups.offsets_replication_factor, broker.workers)),
        transactions=replace(
            transactions, state_replication_factor=min(transactions.state_replication_factor, broker.workers)
        ),
    )


def flat_settings(settings: Settings) -> dict[str, object]:
    """Return the values by `section.name`, as `from_sources` takes them."""
    sections = {section.name: getattr(settings, section.name) for section in fields(settings)}
    return {
        f"{name}.{field.name}": getattr(section, field.name)
        for name, section in sections.items()
        for field in fields(section)
    }


def check_workers(settings: Settings) -> None:
    """Raises SettingsError for settings that several workers cannot have."""
    broker, network = settings.broker, settings.network
    if broker.metadata != EMBEDDED:
        raise SettingsError(
            "--workers and --metadata exclude each other: workers have their own metadata. Start each broker of a"
            " ZooKeeper's cluster by itself, with its own --node-id and --data-dir"
        )
    if broker.node_id != 1:
        raise SettingsError(
            f"--workers and --node-id {broker.node_id} exclude each other: workers are the brokers 1 to"
            f" {broker.workers}"
        )
    if network.peer or network.peer_advertised:
        raise SettingsError(
            "--workers excludes --peer and network.peer_advertised: workers reach each other over loopback"
        )
    taken: dict[int, str] = {}
    for port, name in _ports(settings):
        if port in taken:
            raise SettingsError(
                f"port {port} would be {taken[port]} and {name}: the ports of {broker.workers} workers follow each"
                " other, so leave room between --kafka and --http"
            )
        taken[port] = name


def check_all_are_started(data_dir: Path, workers: int) -> None:
    """Raises StartupError if the directory has partitions of a worker that would not be started."""
    found = [int(match[1]) for path in data_dir.iterdir() if (match := _WORKER_NAME.fullmatch(path.name))]
    for number in sorted(found, reverse=True):
        logs = worker_directory(data_dir, number) / "logs"
        if number > workers and logs.is_dir() and any(logs.iterdir()):
            raise StartupError(
                f"data directory {data_dir} has partitions of worker {number}: start with --workers {number}, and move"
                f" them with `conveyor cluster drain {number}` before you start fewer (docs/cluster.md, More or fewer"
                " workers)"
            )


def socket_path(data_dir: Path) -> Path:
    """Return where the supervisor serves the store. Unix sockets have short paths: for a long one it is elsewhere."""
    path = data_dir.absolute() / _SOCKET_NAME
    if len(str(path).encode()) <= _MAX_SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.mkdtemp(prefix="conveyor-")) / _SOCKET_NAME


def _ports(settings: Settings) -> Iterator[tuple[int, str]]:
    """Yield every fixed port, and whose it is. Raises SettingsError for one that does not exist."""
    for name in ("kafka", "http"):
        for number in range(1, settings.broker.workers + 1):
            listeners = _shifted(getattr(settings.network, name), f"network.{name}", number)
            for _, address in split_listeners(listeners):
                port = parse_address(address, f"network.{name}").port
                if port:
                    yield port, f"--{name} of worker {number}"


def _shifted(text: str, setting: str, number: int) -> str:
    """Return a list of listeners with the ports of a worker."""
    return ",".join(f"{name}{_shifted_address(address, setting, number)}" for name, address in split_listeners(text))


def _shifted_address(text: str, setting: str, number: int) -> Address:
    address = parse_address(text, setting)
    if not address.port:
        return address
    port = address.port + number - 1
    if port > _MAX_PORT:
        raise SettingsError(f"setting '{setting}' is {text!r}: there is no port {port} for worker {number}")
    return Address(address.host, port)
