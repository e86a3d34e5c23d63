"""Joins this broker to the cluster, and removes it at shutdown.

    prepare     read what the data directory knows of itself, before its logs are opened
    join        register with the logs that may lack records, stand for controller, lead what the controller assigns
    hand_over   let other brokers lead, before the last requests are answered
    leave       seal the logs, remove the registration

With an embedded store there is nothing to register, and the broker leads at once, but not what it has lost.

A gateway is registered, so that others can see it, and takes part in nothing: no controller puts it into the image, it
does not stand for controller, and no data is its own.

The file `data.id` has a UUID, created by the first start in a cluster; it says which broker a directory belongs to. See
`replica_checkpoint` for what the directory knows of its logs.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.metadata.controller import Controller
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.services import Services
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.controlled_shutdown import ShutdownRequest, stopping_broker
from conveyor.cluster.controller.registrations import Doubt, Registration, doubtful_bundles, without_lost
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.kernel.errors import RequestError, StartupError, StorageFailure
from conveyor.kernel.ids import TopicId, is_gateway
from conveyor.replication.replica_facts import ReplicaKey

log = logging.getLogger(__name__)

DATA_ID = "data.id"
_JOIN_TIMEOUT_S = 60.0
_HAND_OVER_TIMEOUT_S = 5.0


class Membership:
    def __init__(self, services: Services, partitions: Partitions, ports: BrokerPorts) -> None:
        self._services = services
        self._node_id = services.me
        self._metadata = services.metadata
        self._session = services.metadata.session
        self._controller = Controller(services, ports.store)
        self._table = partitions.table
        self._logs = partitions.logs
        self._checkpoint = partitions.logs.checkpoint
        self._ports = ports
        self._data_id = ""

    async def prepare(self) -> None:
        """Raises StorageFailure; StartupError if the data directory belongs to another broker."""
        if is_gateway(self._node_id):
            return
        await asyncio.get_running_loop().run_in_executor(self._ports.threads, self._identify)

    async def join(self, broker: BrokerImage) -> None:
        """Return once the cluster shows this broker as live, and the broker has its roles; a gateway, once it is
        registered.

        Raises StorageFailure; StartupError if another broker has this id.
        """
        if self._session.is_embedded:
            await self._leave_lost()
            return self._checkpoint.settle()
        if is_gateway(broker.node_id):
            return await self._session.start(self._registration(broker))
        self._metadata.listen(self._observe)
        await self._session.start(self._registration(broker), self._claim)
        self._checkpoint.start()
        self._controller.start()
        try:
            async with asyncio.timeout(_JOIN_TIMEOUT_S):
                await self._metadata.until(self._session.may_lead)
        except TimeoutError:
            raise StorageFailure(
                f"no controller has admitted this broker within {_JOIN_TIMEOUT_S:.0f} s: look for its reason in the log"
                f" of broker {self._metadata.controller_id}"
            ) from None
        try:
            await self._metadata.applied.settled(self._metadata.image.seq)
        except RequestError as error:
            raise StorageFailure(error.message) from error

    async def hand_over(self) -> None:
        """Move this broker's leaderships to other brokers, and leave the ISRs that have other members."""
        if self._session.is_embedded or not self._session.may_lead(self._metadata.image):
            return
        try:
            async with asyncio.timeout(_HAND_OVER_TIMEOUT_S):
                image = await self._stopped()
                await self._metadata.applied.settled(image.seq)
        except TimeoutError:
            log.warning("leaderships not handed over timeout_s=%.0f", _HAND_OVER_TIMEOUT_S)
        except RequestError as error:
            log.warning("leaderships not handed over reason=%s", error)

    async def leave(self) -> None:
        """Seal all logs, and remove the registration. If the store cannot be reached, it ends with the session."""
        self._session.register_no_more()  # A registration would be written to the checkpoint beside the stop.
        await self._checkpoint.stop()
        is_clean = await self._table.seal(self._ports.threads)
        if not is_gateway(self._node_id):
            write = self._checkpoint.write_at_stop
            await asyncio.get_running_loop().run_in_executor(self._ports.threads, partial(write, is_clean=is_clean))
        if not self._session.is_embedded:
            self._controller.stop()
            await self._session.close()

    async def _stopped(self) -> ClusterImage:
        request = ShutdownRequest(node_id=self._node_id, broker_epoch=self._session.broker_epoch)
        return await self._metadata.propose_all(lambda image: stopping_broker(image, request, self._services.settings))

    def _doubts(self) -> dict[tuple[TopicId, int], Doubt]:
        """Return the bundles with doubtful logs, by their owners."""
        damaged = dict.fromkeys(self._table.incomplete(), Doubt.DAMAGED)
        doubts: dict[tuple[TopicId, int], Doubt] = {}
        image = self._metadata.image
        for identity, doubt in [*damaged.items(), *self._logs.doubts.items()]:
            owner = image.topics.get(image.bundle_owner(identity.topic))
            if owner is not None:
                bundle = owner.topic_id, identity.partition
                doubts[bundle] = max(doubt, doubts.get(bundle, doubt))
        return doubts

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        """The controller registers a broker when it has taken the doubtful logs into account."""
        if self._session.may_lead(new):
            self._checkpoint.settle()

    async def _leave_lost(self) -> None:
        """Let partitions whose logs are lost have no leader, so that an unclean election can give up their records."""
        lost = [bundle for bundle, doubt in self._doubts().items() if doubt is Doubt.LOST]
        if lost:
            try:
                await self._metadata.propose_all(partial(self._without, lost))
            except RequestError as error:
                log.warning("lost logs not withdrawn partitions=%d reason=%s", len(lost), error)

    def _without(self, lost: Sequence[tuple[TopicId, int]], image: ClusterImage) -> list[Change]:
        return without_lost(image, self._node_id, lost, self._services.settings)

    def _identify(self) -> None:
        """Blocks. An embedded store is in the data directory, which therefore needs no identity."""
        is_embedded = self._session.is_embedded
        is_new = is_embedded or not self._ports.disk.exists(DATA_ID)
        if not is_embedded and is_new:
            self._ports.disk.write_atomic(DATA_ID, str(self._ports.new_id()).encode())
        if not is_embedded:
            self._data_id = self._ports.disk.read(DATA_ID).decode(errors="replace")  # A damaged one is another one.
        self._check_owner()
        assigned = {
            ReplicaKey(topic.topic_id, number)
            for topic in self._metadata.image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if self._node_id in partition.replicas
        }
        self._checkpoint.load(assigned, is_new=is_new)

    def _check_owner(self) -> None:
        node_id = self._node_id
        for broker in self._metadata.image.brokers.values():
            if self._data_id and broker.data_id == self._data_id and broker.node_id != node_id:
                raise StartupError(
                    f"broker.node_id is {node_id}, and the data directory belongs to broker {broker.node_id}:"
                    f" start with --node-id {broker.node_id}, or choose another directory with --data-dir"
                )

    async def _claim(self, registration: Registration) -> Registration:
        """See `Claim`. Doubtful logs count until the image shows a registration that has named them."""
        own = self._metadata.image.brokers.get(self._node_id)
        shown = "" if own is None else own.incarnation
        past = await self._checkpoint.claim(registration.incarnation, shown)
        doubts = {} if self._checkpoint.is_settled else self._doubts()
        return replace(
            registration,
            past_incarnations=past,
            doubts=doubtful_bundles(doubts),
        )

    def _registration(self, broker: BrokerImage) -> Registration:
        return Registration(
            node_id=broker.node_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            incarnation="",
            broker_epoch=0,
            boot_id=self._ports.boot_id,
            data_id=self._data_id,
            lock_id=self._ports.lock_id,
            peer_host=broker.peer_host,
            peer_port=broker.peer_port,
            http_url=broker.http_url,
            listeners=dict(broker.listeners),
        )
