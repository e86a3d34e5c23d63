"""A broker and its listeners: wiring, start, stop.

Start: bind the sockets for clients, lock the data directory, bind the socket for other brokers, recover the logs, open
the Kafka door, open the HTTP door, ready.
Stop: refuse new requests except operators', answer pending requests, wait until clients have read their responses,
close the connections, seal the logs, end the links to other brokers.
"""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from conveyor.adapters.boot_id import boot_id
from conveyor.adapters.compactor import ProcessCompactor, ThreadCompactor
from conveyor.adapters.disk import RealDisk
from conveyor.adapters.no_disk import NoDisk
from conveyor.adapters.page_cache import page_cache_id
from conveyor.adapters.system_clock import SystemClock
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.partitions.compaction import Compactor
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.http_api.requests.access_keys import read_access_keys
from conveyor.http_api.requests.tokens import read_tokens
from conveyor.kernel.access.caller import ANONYMOUS
from conveyor.kernel.errors import ConveyorError, SettingsError, StartupError, StorageFailure
from conveyor.kernel.ids import gateway_id
from conveyor.kernel.peers import PeerNetwork
from conveyor.kernel.ports import Clock, Disk, MetadataStore
from conveyor.server.addresses import Address, bind, bound_address, parse_address, reachable_host
from conveyor.server.certificate_watch import BROKERS, CLIENTS, CertificateWatch
from conveyor.server.data_directory import DataDirectory
from conveyor.server.http_listener import OPERATIONS_CONNECTIONS, HttpListener
from conveyor.server.kafka_listener import KafkaListener
from conveyor.server.listeners import ClientListeners, kafka_listeners
from conveyor.server.metadata_stores import open_metadata_store
from conveyor.server.network_probe import NetworkProbe
from conveyor.settings.tree import EMBEDDED, Settings

if TYPE_CHECKING:  # Loaded on demand; see `_load_kernel_syncs`, `_open_peers` and `_open_tls`.
    from conveyor.adapters.kernel_syncs import KernelSyncs
    from conveyor.adapters.key_file import KeyFile
    from conveyor.adapters.peers.link_certificate import LinkCertificate
    from conveyor.adapters.peers.tcp_peer_network import TcpPeerNetwork
    from conveyor.adapters.push.http_push_client import HttpPushClient
    from conveyor.adapters.tokens.key_document import KeyDocument
    from conveyor.server.client_tls import ClientTls

log = logging.getLogger(__name__)

_MAX_FILES = 1 << 20
"""The assumed limit of open files if the system sets none."""
_OTHER_DESCRIPTORS = 64 + OPERATIONS_CONNECTIONS
"""Descriptors reserved for listeners, the metadata store, atomically written files, and operators' connections."""
_PEER_DESCRIPTORS = 256
"""Descriptors reserved for links to other brokers, if the metadata is not embedded."""


class Server:
    """One broker and its listeners. storage: a data directory, or an existing disk and metadata store.

    wrap_peers: returns the network to use instead of the real one, so that a test can cut it.
    Set `stopping` to stop the server. A bug sets it too, and stores its exception in `failure`.
    """

    def __init__(
        self,
        settings: Settings,
        storage: Path | tuple[Disk, MetadataStore],
        wrap_peers: Callable[[PeerNetwork], PeerNetwork] = lambda peers: peers,
    ) -> None:
        if settings.broker.workers > 1:
            raise SettingsError(
                f"broker.workers is {settings.broker.workers}, and this process is one broker: only `conveyor serve`"
                " starts workers"
            )
        self.settings = settings = _with_gateway_id(settings)
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self.peers: TcpPeerNetwork | None = None
        self._storage = storage
        self._probe = NetworkProbe()
        self._certificates = CertificateWatch(self._probe)
        self._syncs: KernelSyncs | None = None
        self._joined: Callable[[str], None] = lambda _: None
        self._boot_id = self._cache_id = boot_id()
        self._lock_id = ""
        self._tokens = read_tokens(settings.network.token_file, read_access_keys(settings.sqs.keys_file))
        self._max_connections = settings.network.max_connections
        self._max_http_connections = settings.network.max_http_connections
        self._wrap_peers = wrap_peers
        self._sockets: list[socket.socket] = []
        self._threads = ThreadPoolExecutor(settings.broker.flush_threads, "disk")
        self._metadata_threads = ThreadPoolExecutor(1, "metadata")
        self._stack = contextlib.AsyncExitStack()

    @property
    def kafka_address(self) -> Address:
        """The address of the first Kafka listener."""
        return self.listeners.kafka[0].address

    @property
    def http_address(self) -> Address:
        """The address of the HTTP listener."""
        return self.listeners.http.address

    async def start(self, clock: Clock | None = None) -> None:
        """Start accepting requests. Raises SettingsError, StartupError; then nothing stays open."""
        async with contextlib.AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(self._on_loop_error)
            if clock is None:
                clock = stack.enter_context(contextlib.closing(SystemClock(loop)))
            await self._start(stack, clock)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Answer pending requests, flush and seal the logs, close everything."""
        self.broker.liveness.is_stopping = True
        await self._stack.aclose()

    def abandon(self) -> None:
        """Release sockets and threads after the event loop was stopped in the middle of the server's work."""
        self._threads.shutdown(cancel_futures=True)
        self._metadata_threads.shutdown(cancel_futures=True)
        for bound in self._sockets:
            bound.close()

    async def _start(self, stack: contextlib.AsyncExitStack, clock: Clock) -> None:
        self.listeners = listeners = ClientListeners(self.settings, has_tokens=bool(self._tokens))
        stack.callback(listeners.close)
        self._sockets += listeners.sockets
        tls = self._open_tls() if listeners.need_tls else None
        self._announce_http()
        try:
            self.broker = await self._make_broker(stack, clock)
            stack.push_async_callback(self.broker.stop)
            await self.broker.start(listeners.endpoints)
            await self.broker.clients.tokens.start()
        except StorageFailure as failure:
            what = "data directory" if self.settings.broker.metadata == EMBEDDED else "data directory or the ZooKeeper"
            raise StartupError(f"the {what} cannot be used: {failure}") from failure
        max_connections = min(self.settings.network.max_connections, self._max_connections)
        if max_connections < self.settings.network.max_connections:
            log.info("connections limited to=%d: this process may open no more files", max_connections)
        *kafka_sockets, http_socket = listeners.sockets
        self._kafka = kafka = KafkaListener(self.broker, self._probe, max_connections)
        http = HttpListener(self.broker, self._probe, http_socket, self._max_http_connections, self._tokens)
        stack.push_async_callback(self._drain, kafka, http)
        acceptor = None
        if tls is not None:
            acceptor = tls.acceptor
            self._certificates.add(CLIENTS, tls.certificate)
        self.broker.tasks.start(self._certificates.watch())
        for listener, bound in zip(listeners.kafka, kafka_sockets, strict=True):
            await kafka.listen(bound, listener, acceptor if listener.protocol.is_encrypted else None)
        http.start(acceptor if listeners.http.protocol.is_encrypted else None)

    async def use_kernel_syncs(self) -> None:
        """Sync files through the kernel's queue (Linux AIO) if the system has one. Otherwise threads keep syncing them.

        Call it when the broker is ready, because it blocks the process for about 30 ms.
        """
        loop = asyncio.get_running_loop()
        try:
            kernel_syncs = await loop.run_in_executor(None, _load_kernel_syncs)
            self._syncs = kernel_syncs(loop)
        except (ImportError, OSError) as reason:
            log.info("threads wait for the disk: %s", reason)
        else:
            self.broker.partitions.flusher.use(self._syncs)

    def _close_syncs(self) -> None:
        if self._syncs is not None:
            self._syncs.close()

    async def _drain(self, kafka: KafkaListener, http: HttpListener) -> None:
        """Accept no more requests, answer waiting ones at once, and wait until clients have read their responses."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.settings.network.drain_timeout_ms / 1000
        kafka.stop_reading()
        await http.finish_requests(ends - loop.time())
        await self.broker.finish_requests()
        await asyncio.gather(kafka.drain(ends - loop.time()), http.drain(ends - loop.time()))
        await http.close()

    async def _make_broker(self, stack: contextlib.AsyncExitStack, clock: Clock) -> BrokerNode:
        disk, store, compactor = await self._open_storage(stack)
        if store.session_timeout_ms:
            self.peers = await self._open_peers(stack)
        stack.callback(self._threads.shutdown)
        stack.callback(self._metadata_threads.shutdown)
        stack.callback(self._close_syncs)
        ports = BrokerPorts(
            disk=disk,
            store=store,
            clock=clock,
            threads=self._threads,
            new_id=uuid4,
            failed=self._failed,
            compactor=compactor,
            joined=self._joined,
            boot_id=self._boot_id,
            cache_id=self._cache_id,
            lock_id=self._lock_id,
            peers=None if self.peers is None else self._wrap_peers(self.peers),
            metadata_threads=self._metadata_threads,
            key_source=self._key_source(),
            secret_keys=self._secret_keys(),
            open_push_client=self._push_client,
        )
        return BrokerNode(self.settings, ports)

    async def _open_storage(self, stack: contextlib.AsyncExitStack) -> tuple[Disk, MetadataStore, Compactor]:
        if isinstance(self._storage, tuple):
            disk, store = self._storage
            return disk, store, ThreadCompactor(disk)
        available = _file_limit()
        others = _OTHER_DESCRIPTORS + (0 if self.settings.broker.metadata == EMBEDDED else _PEER_DESCRIPTORS)
        if self.settings.broker.gateway:
            self._share_files(available - others)
            return (
                NoDisk(),
                await open_metadata_store(self.settings, None, self._certificates, self._failed),
                ThreadCompactor(NoDisk()),
            )
        directory = DataDirectory(self._storage)
        if self.settings.broker.metadata != EMBEDDED:
            self._joined = directory.join
            self._cache_id, self._lock_id = (
                page_cache_id(self._boot_id, self._storage),
                directory.lock_id(self._boot_id),
            )
        stack.callback(directory.release)
        limit = self.settings.broker.open_segment_files or max(others, available // 2 - others)
        self._share_files(available - limit - others)
        disk = RealDisk(self._storage, limit)
        DiskRoom(disk, self.settings.disk).measure()  # On a full disk the store may need the reserved space.
        store = await open_metadata_store(self.settings, directory, self._certificates, self._failed)
        return disk, store, ProcessCompactor(self._storage)

    def _share_files(self, room: int) -> None:
        """Divide the files that this process may open among the connections of both doors."""
        self._max_http_connections = max(1, min(self._max_http_connections, room // 8))
        self._max_connections = max(1, room - self._max_http_connections)

    async def _open_peers(self, stack: contextlib.AsyncExitStack) -> "TcpPeerNetwork":
        """Listen for other brokers, at any address, because they prove that they know the secret of the cluster.

        A gateway does not listen.
        """
        # Brokers with embedded metadata do not load it.
        from conveyor.adapters.peers.tcp_peer_network import TcpPeerNetwork

        bound = None if self.settings.broker.gateway else self._bind_for_peers(stack)
        address = Address("", 0) if bound is None else self._advertised_to_peers(bound)
        certificate = await self._link_certificate(address.host)
        peers = TcpPeerNetwork(address.host, address.port, certificate)
        stack.callback(peers.stop)
        await peers.start(bound)
        return peers

    async def _link_certificate(self, host: str) -> "Callable[[], LinkCertificate]":
        """Return what returns the certificate for links that begin now. host: see `IssuedCertificate`."""
        settings = self.settings.tls
        if not settings.peer_cert_file:
            from conveyor.adapters.peers.link_certificate import link_certificate

            await asyncio.to_thread(link_certificate)
            return link_certificate
        # Its library takes 13 MiB.
        from conveyor.adapters.peers.issued_certificate import IssuedCertificate

        issued = await asyncio.to_thread(IssuedCertificate, settings, host)
        self._certificates.add(BROKERS, issued)
        expires_on = datetime.fromtimestamp(issued.expires_at_s, UTC).date()
        log.info("brokers show certificates to each other certificate_expires=%s", expires_on)
        return issued.current

    def _bind_for_peers(self, stack: contextlib.AsyncExitStack) -> socket.socket:
        network = self.settings.network
        default = Address(kafka_listeners(network)[0].address.host, 0)
        bound = bind(parse_address(network.peer, "network.peer") if network.peer else default, "peer")
        stack.callback(bound.close)
        self._sockets.append(bound)
        return bound

    def _advertised_to_peers(self, bound: socket.socket) -> Address:
        advertised = self.settings.network.peer_advertised
        if advertised:
            return parse_address(advertised, "network.peer_advertised")
        host, port = bound_address(bound)
        return Address(reachable_host(host), port)

    def _open_tls(self) -> "ClientTls":
        # Brokers without TLS do not load it, and those whose clients show no certificates only a part.
        from conveyor.server.client_tls import ClientTls

        settings = self.settings.tls
        if not settings.client_ca_file:
            return ClientTls(settings, lambda _: ANONYMOUS, self._probe)
        from conveyor.adapters.tls.client_names import ClientNames

        return ClientTls(settings, ClientNames(settings.principal_rules).principal, self._probe)

    def _key_source(self) -> "KeyDocument | None":
        if not self.settings.sasl.has_keys:
            return None
        # Its library takes 0.3 s to load, which brokers without such clients do not wait for.
        from conveyor.adapters.tokens.key_document import KeyDocument

        return KeyDocument(self.settings.sasl)

    def _secret_keys(self) -> "KeyFile | None":
        if not self.settings.broker.secrets_key_file:
            return None
        from conveyor.adapters.key_file import KeyFile

        return KeyFile(Path(self.settings.broker.secrets_key_file))

    def _push_client(self) -> "HttpPushClient":
        # Brokers without push targets do not load it.
        from conveyor.adapters.push.http_push_client import HttpPushClient

        return HttpPushClient(self.settings.push)

    def _announce_http(self) -> None:
        """Complete the setting that tells clients the address of the HTTP listener."""
        network = self.settings.network
        host = reachable_host(self.listeners.http.address.host)
        url = network.http_advertised or self.listeners.http_url(host=host)
        self.settings = replace(self.settings, network=replace(network, http_advertised=url.rstrip("/")))

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that escaped from a callback. An OSError concerns one connection; others are bugs."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            log.debug("event loop message=%s error=%r", context.get("message"), error)
        else:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Stop the server because of a bug, or because another broker has taken its place."""
        if isinstance(error, ConveyorError):
            log.critical("broker stops: %s", error)
        else:
            log.critical("broker stops: unexpected error", exc_info=error)
        self.failure = error
        self.stopping.set()


def _with_gateway_id(settings: Settings) -> Settings:
    """Return the settings with an id for a gateway, a new one at each start."""
    if not settings.broker.gateway:
        return settings
    return replace(settings, broker=replace(settings.broker, node_id=gateway_id(uuid4())))


def _load_kernel_syncs() -> "type[KernelSyncs]":
    """Import KernelSyncs. Raises ImportError on systems other than Linux."""
    from conveyor.adapters.kernel_syncs import KernelSyncs

    return KernelSyncs


def _file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, _MAX_FILES)


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows. Call it only in a process that is only a broker: other
    code may use `select`, which fails for descriptors above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # The system may allow less than the hard limit.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
