"""Sends the markers of one coordinator to the leaders of their partitions, and reports the answers to the coordinator.

    AwaitMarkers -> (an outcome is committed) -> the coordinator's reply: markers -> AwaitMarkers
    markers -> queue of the leader by the newest image -> one request in flight -> final answer -> RecordMarkers
                       ^                                                        -> any other -> (after a pause)-+
                       +----------------------------------------------------------------------------------------+

Markers are sent until each partition has answered or is deleted, to its present leader. A coordinator hands markers out
only when the outcome of the transaction is committed.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from conveyor.broker.answers import Answer, pause
from conveyor.broker.markers.marker_writer import WRITE_MARKERS, MarkersOfTransaction, WriteMarkers, is_final
from conveyor.broker.remote.leader_calls import CALL_TIMEOUT_MS, LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.image import NO_LEADER
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicPartition
from conveyor.kernel.peers import PeerUnreachable
from conveyor.transactions.transaction_commands import (
    AwaitMarkers,
    MarkerAnswer,
    RecordMarkers,
    TransactionCommand,
)
from conveyor.transactions.transaction_replies import TransactionMarkers

_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 2_000
_MAX_MARKERS = 1_000
"""The most markers in one request."""

Place = tuple[str, int, TopicPartition]
"""A transactional id, the serial number of its markers, and a partition."""


class DecidesMarkers(Protocol):
    """The coordinator that decides on the markers."""

    def ask(self, command: TransactionCommand[Answer]) -> Awaitable[Answer]:
        """Return the reply of the machine. Raises RequestError."""
        ...


class _Marker(msgspec.Struct, kw_only=True):
    """The marker for one partition. pause_ms: before it is sent again."""

    markers: TransactionMarkers
    partition: TopicPartition
    pause_ms: int = _FIRST_PAUSE_MS

    @property
    def place(self) -> Place:
        return self.markers.transactional_id, self.markers.serial, self.partition


class MarkerSender:
    """See the module's docstring. coordinator: decides on the markers."""

    def __init__(self, coordinator: DecidesMarkers, leaders: LeaderCalls, services: Services) -> None:
        self._coordinator = coordinator
        self._leaders = leaders
        self._metadata = services.metadata
        self._own_caller = services.own_caller
        self._clock = services.clock
        self._tasks = services.tasks
        self._running: set[asyncio.Task[None]] = set()
        self._unrecorded: set[Place] = set()
        self._queues: dict[NodeId, list[_Marker]] = {}
        self._served: set[NodeId] = set()

    def start(self) -> None:
        """Send the markers of the coordinator from now on."""
        self._start(self._follow())

    def stop(self) -> None:
        """Send no more. A marker in flight may still arrive; another coordinator sends it again."""
        running, self._running = self._running, set()
        for task in running:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.start(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _follow(self) -> None:
        again = True
        while True:
            try:
                reply = await self._coordinator.ask(AwaitMarkers(again=again))
            except RequestError:
                again = True
                await pause(self._clock, _FIRST_PAUSE_MS)
                continue
            again = False
            for markers in reply.markers:
                self._send(markers)

    def _send(self, markers: TransactionMarkers) -> None:
        new = [_Marker(markers=markers, partition=partition) for partition in markers.partitions]
        new = [marker for marker in new if marker.place not in self._unrecorded]
        self._unrecorded.update(marker.place for marker in new)
        self._route(new)

    def _route(self, markers: Sequence[_Marker]) -> None:
        """Queue markers for the present leaders of their partitions. Those of deleted partitions are done."""
        deleted: list[tuple[_Marker, MarkerAnswer]] = []
        for marker in markers:
            partition = self._metadata.image.partition(*marker.partition)
            if partition is None:
                deleted.append((marker, MarkerAnswer.PARTITION_DELETED))
                continue
            self._queues.setdefault(partition.leader, []).append(marker)
            if partition.leader not in self._served:
                self._served.add(partition.leader)
                self._start(self._serve(partition.leader))
        self._record(deleted)

    async def _serve(self, leader: NodeId) -> None:
        """Send the markers in the queue of a leader, in one request after the other, until it is empty."""
        try:
            while queue := self._queues.pop(leader, None):
                markers, rest = queue[:_MAX_MARKERS], queue[_MAX_MARKERS:]
                if rest:
                    self._queues[leader] = rest
                results = await self._results(leader, markers)
                pairs = list(zip(markers, results, strict=True))
                self._record([(marker, _answer(result)) for marker, result in pairs if is_final(result)])
                refused = [marker for marker, result in pairs if not is_final(result)]
                if refused:
                    self._start(self._send_later(refused))
        finally:
            self._served.discard(leader)

    async def _send_later(self, markers: Sequence[_Marker]) -> None:
        await pause(self._clock, min(marker.pause_ms for marker in markers))
        for marker in markers:
            marker.pause_ms = min(2 * marker.pause_ms, _LONGEST_PAUSE_MS)
        self._route(markers)

    async def _results(self, leader: NodeId, markers: Sequence[_Marker]) -> list[RequestError | None]:
        """Return the answer for each marker, in order."""
        grouped: dict[tuple[str, int], list[int]] = {}
        for index, marker in enumerate(markers):
            grouped.setdefault(marker.place[:2], []).append(index)
        groups = list(grouped.values())
        request = WriteMarkers([_of_transaction([markers[index] for index in group]) for group in groups])
        results: list[RequestError | None] = [None] * len(markers)
        try:
            answers = await self._ask(leader, request)
        except RequestError as error:
            return [error.detached()] * len(markers)
        if [len(answer) for answer in answers] != [len(group) for group in groups]:
            wrong = RequestError(ErrorKind.UNSUPPORTED_VERSION, f"broker {leader} has answered for other markers")
            return [wrong] * len(markers)
        for group, answer in zip(groups, answers, strict=True):
            for index, result in zip(group, answer, strict=True):
                results[index] = result
        return results

    async def _ask(self, leader: NodeId, request: WriteMarkers) -> list[list[RequestError | None]]:
        if leader == self._leaders.node_id:
            return await self._leaders.handlers.answer(self._own_caller, WRITE_MARKERS, request)
        if leader == NO_LEADER:
            raise NotLeader("no broker leads the partition at the moment", None, LeaderEpoch(-1))
        try:
            return await self._leaders.ask_node(self._own_caller, WRITE_MARKERS, leader, request, CALL_TIMEOUT_MS)
        except PeerUnreachable as failure:
            raise RequestError(ErrorKind.NOT_LEADER, f"broker {leader} cannot be reached: {failure}") from failure

    def _record(self, answers: Sequence[tuple[_Marker, MarkerAnswer]]) -> None:
        by_transaction: dict[tuple[str, int], list[tuple[TopicPartition, MarkerAnswer]]] = {}
        for marker, answer in answers:
            by_transaction.setdefault(marker.place[:2], []).append((marker.partition, answer))
        for (transactional_id, serial), given in by_transaction.items():
            command = RecordMarkers(transactional_id=transactional_id, serial=serial, answers=tuple(given))
            self._start(self._recorded(command))

    async def _recorded(self, command: RecordMarkers) -> None:
        """Tell the coordinator until it has stored the answers. It ignores answers that it knows."""
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                await self._coordinator.ask(command)
            except RequestError:
                await pause(self._clock, pause_ms)
                pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
            else:
                break
        for partition, _ in command.answers:
            self._unrecorded.discard((command.transactional_id, command.serial, partition))


def _of_transaction(group: Sequence[_Marker]) -> MarkersOfTransaction:
    markers = group[0].markers
    return MarkersOfTransaction(
        markers.producer.producer_id,
        markers.producer.producer_epoch,
        markers.coordinator_epoch,
        markers.commit,
        markers.transaction_version,
        [marker.partition for marker in group],
    )


def _answer(result: RequestError | None) -> MarkerAnswer:
    if result is None:
        return MarkerAnswer.WRITTEN
    if result.kind is ErrorKind.INVALID_PRODUCER_EPOCH:
        return MarkerAnswer.NEWER_EPOCH
    assert result.kind is ErrorKind.TRANSACTION_COORDINATOR_FENCED, result
    return MarkerAnswer.NEWER_COORDINATOR
