"""The promises made to the clients of a queue with key order, beside those of every queue.

By the names that failures report:

    OneBatchPerKey       one load of a queue grants no message of a key in another response while a lease of the key is
                         running
    KeysInOrder          a message is not leased before an earlier one of its key is settled, unless both are in one
                         response, in their order
    LateAckByLastLease   an ack after the end of its lease does not succeed once the same load of the queue has leased
                         the message again

As in `ClusterQueueLedger`, the ledger compares the times at which leases were granted and ended at their leader.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulation.clients.cluster_queue import ClusterQueueLedger, Granted
from simulation.doors.rest_requests import ClientLease
from simulation.ledger import InvariantBroken

KeyPlace = tuple[int, str]
"""A partition and a key."""


class _Held(NamedTuple):
    lease: ClientLease
    granted: Granted
    response: int


class OrderedKeysLedger(ClusterQueueLedger):
    """See the module's docstring. The payload of a message begins with its key and a colon."""

    def __init__(self, is_excused: Callable[[], bool], latest_at: Callable[[int], int]) -> None:
        super().__init__(is_excused, latest_at)
        self._offsets: dict[KeyPlace, list[int]] = {}
        """Of the messages that were acknowledged to their producer."""
        self._acks_begun: dict[str, set[str]] = {}
        """The ack ids of each message by which a client has begun to acknowledge it."""
        self._held: dict[KeyPlace, list[_Held]] = {}
        self._responses_count = 0

    def publish(self, partition: int, first_offset: int, keys: Sequence[str]) -> None:
        """Note messages that were acknowledged to their producer."""
        for offset, key in enumerate(keys, first_offset):
            self.published[f"{partition}-{offset}"] = 0
            self._offsets.setdefault((partition, key), []).append(offset)

    def response(self, leases: Sequence[ClientLease]) -> None:
        """Check the leases of one response, which `lease` has noted."""
        self._responses_count += 1
        together: dict[KeyPlace, list[int]] = {}
        for lease in leases:
            place, offset = _place_of(lease)
            granted = self.leases_of(lease.message_id)[lease.ack_id]
            batch = together.setdefault(place, [])
            if offset in batch:  # The leases have expired while the request was going on.
                batch.clear()
            if not self.is_excused():
                self._check_in_order(place, offset, batch)
                self._check_alone(place, lease, granted)
            batch.append(offset)
            self._held.setdefault(place, []).append(_Held(lease, granted, self._responses_count))

    def begin_ack(self, leases: Sequence[ClientLease]) -> None:
        """Note that a client is about to acknowledge messages."""
        for lease in leases:
            self._acks_begun.setdefault(lease.message_id, set()).add(lease.ack_id)

    def late_ack(self, lease: ClientLease, asked_ms: int) -> None:
        """Check an ack that has succeeded, and was asked for after the end of its lease."""
        if self.is_excused() or self._acks_begun[lease.message_id] != {lease.ack_id}:
            return
        leases = self.leases_of(lease.message_id)
        granted = leases[lease.ack_id]
        for other in leases.values():
            is_later = granted.granted_ms[1] < other.granted_ms[0] and other.granted_ms[1] < asked_ms
            if other.incarnation == granted.incarnation and is_later:
                raise InvariantBroken(
                    "LateAckByLastLease",
                    f"message {lease.message_id} has the leases {granted} and {other}; the first acks at {asked_ms}",
                )

    def _check_in_order(self, place: KeyPlace, offset: int, together: Sequence[int]) -> None:
        if together and together[-1] > offset:
            raise InvariantBroken("KeysInOrder", f"{place}: {offset} is leased behind {together[-1]}")
        for earlier in self._offsets.get(place, ()):
            is_over = earlier in together or f"{place[0]}-{earlier}" in self._acks_begun
            if earlier < offset and not is_over:
                raise InvariantBroken("KeysInOrder", f"{place}: {offset} is leased before {earlier} is settled")

    def _check_alone(self, place: KeyPlace, lease: ClientLease, granted: Granted) -> None:
        for other in self._held.get(place, ()):
            is_other = other.response != self._responses_count and other.lease.message_id != lease.message_id
            if is_other and other.granted.incarnation == granted.incarnation and not granted.is_apart(other.granted):
                detail = f"{lease.message_id} has the lease {granted}, and {other.lease.message_id} {other.granted}"
                raise InvariantBroken("OneBatchPerKey", f"{place}: {detail}")


def _place_of(lease: ClientLease) -> tuple[KeyPlace, int]:
    """Return the partition, the key and the offset of a leased message."""
    partition, offset = lease.message_id.split("-")
    return (int(partition), lease.payload.partition(":")[0]), int(offset)
