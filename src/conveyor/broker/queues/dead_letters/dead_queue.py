"""The dead letters of a subscription in one partition, as its leader has them."""

from typing import NamedTuple
from uuid import UUID

import msgspec

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.queues.queue_calls import QueuePlace
from conveyor.broker.remote.calls import Call
from conveyor.kernel.range_set import RangeSet
from conveyor.queues.messages.dead_copies import CopiedRange, DeadCopies
from conveyor.queues.subscription.policy import Subscription


class DeadQueue(NamedTuple):
    """The offsets of the dead letters in partition `number`, and their copies. end: the high watermark.

    Those of a partition that this broker leads change with it; those of another one are as they were when it was asked.
    """

    number: int
    dead: RangeSet
    copies: DeadCopies
    end: int


class DeadHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the dead letters of a subscription in one partition."""

    place: QueuePlace
    subscription: str
    subscription_id: UUID


class DeadState(msgspec.Struct, frozen=True, array_like=True):
    """A DeadQueue in a frame. dead: ranges [start, end)."""

    dead: list[tuple[int, int]]
    copies: list[CopiedRange]
    end: int


DEAD: Call[DeadHere, DeadState] = Call("queue.dead", DeadHere, DeadState, is_repeatable=True)


def dead_queue(subscription: Subscription, partition: QueuePartition) -> DeadQueue:
    """Return the dead letters in a partition that this broker leads."""
    queue, end = partition.machine.queue(subscription.id), partition.stable_offset
    if queue is None:
        return DeadQueue(partition.number, RangeSet(), DeadCopies(), end)
    return DeadQueue(partition.number, queue.progress.dead, queue.progress.copies, end)


def to_state(dead: DeadQueue) -> DeadState:
    return DeadState(list(dead.dead), list(dead.copies.ranges()), dead.end)


def from_state(number: int, state: DeadState) -> DeadQueue:
    copies = DeadCopies()
    for copied in state.copies:
        copies.add(copied)
    return DeadQueue(number, RangeSet(state.dead), copies, state.end)
