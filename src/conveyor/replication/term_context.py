"""The parts of a partition that its terms use and that outlive them, and the partition's calls to its owner."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import Offset, TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.log.log import Log
from conveyor.log.segments.segment_indexes import StoredIndexes
from conveyor.replication.offline_state import OfflineState

Held = TypeVar("Held")
"""A partition."""


class OwnerCalls(msgspec.Struct, Generic[Held], frozen=True, kw_only=True):
    """The calls of a partition to its owner.

    wants_write, wants_flush: there are records to write or flush; the owner then calls `write`, or `begin_flush` and
    `complete_flush`. went_offline: after a StorageFailure. wants_checks: clients wait for the high watermark; the owner
    then calls `LeaderTerm.check_commits` until it returns False. wants_index: a read needs the indexes of a segment;
    the owner then prepares them on a thread. holds_lease: returns whether no other broker can have taken this broker's
    place yet.
    """

    wants_write: Callable[[Held], None]
    wants_flush: Callable[[Held], None]
    went_offline: Callable[[StorageFailure], None] = lambda _: None
    wants_checks: Callable[[TopicPartition], None] = lambda _: None
    wants_index: Callable[[Held, StoredIndexes], None] = lambda *_: None
    holds_lease: Callable[[], bool] = lambda: True


class TermContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """See the module's docstring. holds_lease, wants_checks: see `OwnerCalls`. changed: see `Partition`."""

    identity: TopicPartition
    log: Log
    offline: OfflineState
    changed: Signal[None]
    wants_checks: Callable[[TopicPartition], None]
    holds_lease: Callable[[], bool]


def reported_offset(log: Log) -> Offset:
    """Return the end of what a follower reports as written. A leader with `flush.policy=os` counts it: as long as the
    own policy is `ack`, it is only what this replica could not lose without knowing it.
    """
    return log.flushes.flushed_offset if log.topic.flush_policy == "ack" else log.flushes.recoverable_offset
