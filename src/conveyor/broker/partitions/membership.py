"""This broker's way into the cluster and out of it. With an embedded store, nothing here does anything.

    prepare     read the identity of the data directory, before its logs are opened
    join        register with recovered logs, stand for controller, lead what the controller assigns
    hand_over   let other brokers lead, before the last requests are answered
    leave       remove the registration, after the logs are sealed

A gateway is registered, so that others can see it, and takes part in nothing: no controller puts it into the image, it
does not stand for controller, and no data is its own.

Two files of the data directory:

    data.id      a UUID, created by the first start. A broker with another id has lost its records
    clean.stop   has the content `clean` after a stop that has sealed all logs, until the next start
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from uuid import UUID

from conveyor.broker.metadata.controller import Controller
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.store_patience import until_answered
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.controlled_shutdown import ShutdownRequest, stopping_broker
from conveyor.cluster.controller.damaged_replicas import without_returning
from conveyor.cluster.controller.registrations import Registration
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.cluster.internal_topics import owner_of
from conveyor.kernel.errors import RequestError, StartupError, StorageFailure, storage_failure
from conveyor.kernel.ids import NodeId, TopicId, is_gateway
from conveyor.kernel.ports import Clock, Disk
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)

DATA_ID = "data.id"
CLEAN_STOP = "clean.stop"
_CLEAN = b"clean"
_JOIN_TIMEOUT_S = 60.0
_HAND_OVER_TIMEOUT_S = 5.0
_BUNDLES_AT_ONCE = 100


class Membership:
    """See the module's docstring. settings: returns the settings in force. boot_id: see `BrokerImage`."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        controller: Controller,
        reconciler: Reconciler,
        settings: Callable[[], Settings],
        clock: Clock,
        disk: Disk,
        threads: Executor,
        new_id: Callable[[], UUID],
        boot_id: str,
    ) -> None:
        self._metadata = metadata
        self._session = metadata.session
        self._controller = controller
        self._reconciler = reconciler
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._threads = threads
        self._new_id = new_id
        self._boot_id = boot_id
        self._data_id = ""
        self._is_clean = False

    @property
    def _holds_data(self) -> bool:
        """Whether the data directory of this broker has an identity in its cluster."""
        return not (self._session.is_embedded or is_gateway(self._settings().broker.node_id))

    async def prepare(self) -> None:
        """Raises StorageFailure; StartupError if the data directory belongs to another broker."""
        if not self._holds_data:
            return
        await asyncio.get_running_loop().run_in_executor(self._threads, self._identify)
        node_id = self._settings().broker.node_id
        for broker in self._metadata.image.brokers.values():
            if broker.data_id == self._data_id and broker.node_id != node_id:
                raise StartupError(
                    f"broker.node_id is {node_id}, and the data directory belongs to broker {broker.node_id}:"
                    f" start with --node-id {broker.node_id}, or choose another directory with --data-dir"
                )

    async def join(self, broker: BrokerImage) -> None:
        """Return once the cluster shows this broker as live, and the broker has its roles; a gateway, once it is
        registered.

        Raises StorageFailure; StartupError if another broker has this id.
        """
        if self._session.is_embedded:
            return
        await until_answered(self._withdraw_incomplete, self._clock)
        await self._session.start(self._registration(broker))
        if is_gateway(broker.node_id):
            return
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
            await self._reconciler.settled(self._metadata.image.seq)
        except RequestError as error:
            raise StorageFailure(error.message) from error

    async def hand_over(self) -> None:
        """Move this broker's leaderships to other brokers, and leave the ISRs that have other members."""
        if self._session.is_embedded or not self._session.may_lead(self._metadata.image):
            return
        try:
            async with asyncio.timeout(_HAND_OVER_TIMEOUT_S):
                image = await self._stopped()
                await self._reconciler.settled(image.seq)
        except TimeoutError:
            log.warning("leaderships not handed over timeout_s=%.0f", _HAND_OVER_TIMEOUT_S)
        except RequestError as error:
            log.warning("leaderships not handed over reason=%s", error)

    async def leave(self) -> None:
        """Remove the registration, if the store can be reached; otherwise it ends with the session."""
        if not self._session.is_embedded:
            self._controller.stop()
            await self._session.close()

    def note_clean_stop(self) -> None:
        """Note that all logs are sealed. Blocks."""
        if not self._holds_data:
            return
        try:
            self._disk.write_atomic(CLEAN_STOP, _CLEAN)
        except StorageFailure as failure:
            log.warning("clean stop not noted reason=%s", failure)

    async def _stopped(self) -> ClusterImage:
        """Propose until nothing changes: one decision may leave a part to the next."""
        request = ShutdownRequest(
            node_id=NodeId(self._settings().broker.node_id), broker_epoch=self._session.broker_epoch
        )
        is_done = False

        def decide(image: ClusterImage) -> list[Change]:
            nonlocal is_done
            changes = stopping_broker(image, request, self._settings())
            is_done = not changes
            return changes

        while True:
            image = await self._metadata.propose(decide)
            if is_done:
                return image

    async def _withdraw_incomplete(self) -> None:
        """Leave the in-sync replicas with the logs that recovery has found damaged, while other brokers have them.

        Raises StorageFailure.
        """
        incomplete = self._reconciler.partitions.incomplete()
        image, node_id = self._metadata.image, NodeId(self._settings().broker.node_id)
        owners = dict.fromkeys((owner_of(identity.topic), identity.partition) for identity in incomplete)
        bundles = [(image.topics[name].topic_id, number) for name, number in owners if name in image.topics]
        for start in range(0, len(bundles), _BUNDLES_AT_ONCE):
            part = bundles[start : start + _BUNDLES_AT_ONCE]
            try:
                await self._metadata.propose(partial(self._without, node_id, part))
            except RequestError as error:
                raise storage_failure(error) from error

    def _without(self, node_id: NodeId, bundles: Sequence[tuple[TopicId, int]], image: ClusterImage) -> list[Change]:
        return without_returning(image, node_id, bundles, self._settings())

    def _identify(self) -> None:
        """The mark of a clean stop is gone from the disk before any log is opened."""
        if not self._disk.exists(DATA_ID):
            self._disk.write_atomic(DATA_ID, str(self._new_id()).encode())
        self._data_id = self._disk.read(DATA_ID).decode()
        self._is_clean = self._disk.exists(CLEAN_STOP) and self._disk.read(CLEAN_STOP) == _CLEAN
        if self._is_clean:
            self._disk.write_atomic(CLEAN_STOP, b"")

    def _registration(self, broker: BrokerImage) -> Registration:
        return Registration(
            node_id=broker.node_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            incarnation="",
            broker_epoch=0,
            boot_id=self._boot_id,
            data_id=self._data_id,
            is_clean=self._is_clean,
            peer_host=broker.peer_host,
            peer_port=broker.peer_port,
            http_url=broker.http_url,
        )
