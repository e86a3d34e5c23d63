"""Opens the metadata store that the settings name."""

from collections.abc import Callable
from pathlib import Path

from conveyor.adapters.sqlite_store import SqliteStore
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ports import MetadataStore
from conveyor.server.certificate_watch import ZOOKEEPER, CertificateWatch
from conveyor.server.data_directory import DataDirectory
from conveyor.settings.tree import EMBEDDED, SUPERVISED, Settings


async def open_metadata_store(
    settings: Settings,
    directory: DataDirectory | None,
    certificates: CertificateWatch,
    failed: Callable[[BaseException], None],
) -> MetadataStore:
    """Raises SettingsError, StartupError; StorageFailure if the embedded store cannot be used.

    directory: None for a gateway. certificates: gets the one that a ZooKeeper is shown. failed: called when the store
    has ended for good, as with the supervisor of a worker.
    """
    if directory is not None and settings.broker.metadata == EMBEDDED:
        return SqliteStore(directory.check_embedded_metadata())
    if directory is not None and settings.broker.metadata.startswith(SUPERVISED):
        return await _open_socket_store(settings.broker.metadata, directory, failed)
    # Loaded on demand, because kazoo takes long to load and most brokers need none.
    from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
    from conveyor.adapters.zookeeper.zookeeper_store import open_zookeeper_store
    from conveyor.adapters.zookeeper.zookeeper_tls import ZookeeperTls

    zookeeper = settings.zookeeper
    address = parse_zookeeper_address(settings.broker.metadata)
    if directory is not None:
        directory.check_shared_metadata()
    tls = None
    if zookeeper.tls:
        tls = ZookeeperTls(
            ca_file=zookeeper.tls_ca_file, cert_file=zookeeper.tls_cert_file, key_file=zookeeper.tls_key_file
        )
        certificates.add(ZOOKEEPER, tls)
    try:
        return await open_zookeeper_store(
            address, session_timeout_ms=zookeeper.session_timeout_ms, tls=tls, sets_acl=zookeeper.set_acl
        )
    except StorageFailure as failure:
        raise StartupError(f"{failure}: start it, or check --metadata {address}") from failure


async def _open_socket_store(
    address: str, directory: DataDirectory, gone: Callable[[BaseException], None]
) -> MetadataStore:
    """Open the store of this worker's supervisor; see `supervised_address`."""
    # Loaded on demand, because a broker alone needs none.
    from conveyor.adapters.store_socket.socket_store import SocketStore

    directory.check_shared_metadata()
    key, _, path = address.removeprefix(SUPERVISED).partition("@")
    store = SocketStore(Path(path), key, gone)
    await store.open()
    return store


def supervised_address(key: str, path: Path) -> str:
    """Return the metadata setting of a worker."""
    return f"{SUPERVISED}{key}@{path}"
