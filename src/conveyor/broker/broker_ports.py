"""The ports of a broker: everything that it gets from outside."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from conveyor.broker.clients.bearer_tokens import KeySource
from conveyor.broker.metadata.cluster_secret import SecretKeys
from conveyor.broker.partitions.compaction import Compactor
from conveyor.broker.queues.pushing.push_client import OpenPushClient, no_push_client
from conveyor.kernel.ids import NewId
from conveyor.kernel.peers import PeerNetwork
from conveyor.kernel.ports import Clock, Disk, MetadataStore


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The broker's external dependencies: disk, metadata, time, threads that may block, new ids.

    metadata_threads: threads that never wait for the disk; None for `threads`. With these, a controller goes on whose
    disk does not answer.
    failed: called with an exception that is a bug; it must stop the broker. joined: called with the cluster's id,
    before any data of the disk is touched; it raises StartupError if the disk belongs to another cluster. boot_id: of
    the machine's boot; see `BrokerImage`. cache_id: of the page cache under the disk: if it is another one than before,
    what was written and not synced may be lost. lock_id: of the lock on the data directory, which one process on one
    machine holds at a time; empty if there is none. peers: the network to the other brokers; None for a broker that is
    alone. key_source: of the keys of bearer tokens; None if clients cannot log in by them. secret_keys: None if the
    secret of the cluster is not encrypted. open_push_client: opens what sends messages to push targets.
    """

    disk: Disk
    store: MetadataStore
    clock: Clock
    threads: Executor
    new_id: NewId
    failed: Callable[[BaseException], None]
    compactor: Compactor
    joined: Callable[[str], None] = lambda _: None
    boot_id: str = ""
    cache_id: str = ""
    lock_id: str = ""
    peers: PeerNetwork | None = None
    metadata_threads: Executor | None = None
    key_source: KeySource | None = None
    secret_keys: SecretKeys | None = None
    open_push_client: OpenPushClient = no_push_client
