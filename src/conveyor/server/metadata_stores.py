"""Opens the metadata store that the settings name."""

from conveyor.adapters.sqlite_store import SqliteStore
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ports import MetadataStore
from conveyor.server.data_directory import DataDirectory
from conveyor.settings.tree import EMBEDDED, Settings


async def open_metadata_store(settings: Settings, directory: DataDirectory | None) -> MetadataStore:
    """directory: None for a gateway.

    Raises SettingsError, StartupError; StorageFailure if the embedded store cannot be used.
    """
    if directory is not None and settings.broker.metadata == EMBEDDED:
        return SqliteStore(directory.check_embedded_metadata())
    # Loaded on demand, because kazoo takes long to load and most brokers need none.
    from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
    from conveyor.adapters.zookeeper.zookeeper_session import ZookeeperTls
    from conveyor.adapters.zookeeper.zookeeper_store import open_zookeeper_store

    zookeeper = settings.zookeeper
    address = parse_zookeeper_address(settings.broker.metadata)
    if directory is not None:
        directory.check_shared_metadata()
    tls = ZookeeperTls(
        ca_file=zookeeper.tls_ca_file, cert_file=zookeeper.tls_cert_file, key_file=zookeeper.tls_key_file
    )
    try:
        return await open_zookeeper_store(
            address, session_timeout_ms=zookeeper.session_timeout_ms, tls=tls if zookeeper.tls else None
        )
    except StorageFailure as failure:
        raise StartupError(f"{failure}: start it, or check --metadata {address}") from failure
