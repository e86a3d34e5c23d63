"""A client that looks at the messages of a queue: at those that are withheld, and at those that are settled.

Invariants, by the names that failures report:

    ScheduledAreListed  a list of the withheld messages is in the order of their due times and has each message once,
                        with the due time that its publisher has set until the first delivery. It lacks no message that
                        was acknowledged to its producer and that no clock has shown as due
    SettlementsHold     a message is shown as acknowledged once its ack was confirmed. The time of its settlement and
                        its deliveries may be forgotten, but do not change

Nothing is promised about a queue whose records may be lost; see `replica_ledger`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from conveyor.kernel.errors import RequestError
from simulation.clients.cluster_queue import ClusterQueueLedger
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.rest_requests import ListedMessage, SettledState, scheduled_page, settled_state
from simulation.ledger import InvariantBroken
from simulation.story_schedule import Step
from simulation.story_topics import QUEUE_TOPIC, SUBSCRIPTION

_NO_REPLY = (Disconnected, RequestError)


class QueueInspector:
    """See the module's docstring."""

    def __init__(self, ledger: ClusterQueueLedger, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._counts = counts
        self._settled: dict[str, SettledState] = {}
        """What was known of settled messages, by id."""

    async def execute(self, step: Step, door: ClientDoor) -> None:
        with suppress(*_NO_REPLY):
            await (self._list(door, step.number) if step.action == "list_scheduled" else self._show(door, step.number))

    async def _list(self, door: ClientDoor, number: int) -> None:
        published = dict(self._ledger.published)
        listed: list[ListedMessage] = []
        after, is_complete = None, True
        while True:
            page = await scheduled_page(door.any(), SUBSCRIPTION, 1 + number % 7, after)
            listed += page.messages
            after, is_complete = page.next, is_complete and page.is_complete
            if after is None:
                break
        if not self._ledger.is_excused():
            self._check_list(listed, published, is_complete=is_complete)
            self._counts.note("listed scheduled" if listed else "listed none")

    def _check_list(self, listed: Sequence[ListedMessage], published: Mapping[str, int], *, is_complete: bool) -> None:
        latest_ms = self._cluster.latest_at(self._cluster.clock.steady_ms())
        found = {message.message_id: message for message in listed}
        times_ms = [message.due_ms for message in listed]
        if len(found) < len(listed) or times_ms != sorted(times_ms):
            raise InvariantBroken("ScheduledAreListed", f"twice, or not in order: {listed}")
        for name, due_ms in published.items():
            message = found.get(name)
            if due_ms <= latest_ms:
                continue
            if message is not None and (message.due_ms, message.reason) != (due_ms, "delay"):
                raise InvariantBroken("ScheduledAreListed", f"{message} was published with {due_ms}")
            if message is None and is_complete:
                raise InvariantBroken("ScheduledAreListed", f"{name}, which is due at {due_ms}, is missing")

    async def _show(self, door: ClientDoor, number: int) -> None:
        acked = sorted(self._ledger.acked)
        if not acked:
            return
        name = acked[number % len(acked)]
        state = await settled_state(door.any(), QUEUE_TOPIC, SUBSCRIPTION, name)
        if self._ledger.is_excused():
            return
        if state.state != "acknowledged":
            raise InvariantBroken("SettlementsHold", f"message {name} was acknowledged, and is {state}")
        if state.settled_ms is not None:
            first = self._settled.setdefault(name, state)
            if first != state or not state.delivery_count:
                raise InvariantBroken("SettlementsHold", f"message {name}: {state} after {first}")
            self._counts.note("shown settlement")
