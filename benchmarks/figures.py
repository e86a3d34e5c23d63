"""What a row is: a kind of figure, its direction, and how Conveyor's ought to compare with Kafka's."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a figure tells. The value: whether more of it is better.

    RATE, WAIT: of queues; STALL: of the event loop. These have targets of their own only.
    """

    def __init__(self, title: str, more_is_better: bool) -> None:
        self.title = title
        self.more_is_better = more_is_better

    THROUGHPUT = "throughput", True
    REQUESTS = "requests", True
    TRANSACTIONS = "transactions", True
    LATENCY = "latency", False
    TAIL_LATENCY = "tail latency", False
    READY = "time to ready", False
    IDLE_MEMORY = "memory at idle", False
    LOADED_MEMORY = "memory after load", False
    COST = "cost", False
    RATE = "rate", True
    WAIT = "wait", False
    STALL = "stall", False


TARGETS: dict[Kind, float | dict[str, float]] = {
    Kind.THROUGHPUT: 1.3,
    Kind.REQUESTS: 1.0,
    Kind.TRANSACTIONS: {"ack": 0.7, "os": 1.0},
    Kind.TAIL_LATENCY: {"ack": 1.0, "os": 0.7},
    Kind.READY: 0.1,
    Kind.IDLE_MEMORY: 0.2,
    Kind.LOADED_MEMORY: 0.3,
}
"""Conveyor's figure divided by Kafka's, by flush policy where that makes a difference: at least this where more is
better, else at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. own_target: what Conveyor aims at whatever Kafka does, in the same unit."""

    name: str
    kind: Kind
    value: float
    unit: str
    own_target: float | None = None


def target_ratio(kind: Kind, policy: str) -> float | None:
    """What Conveyor's figure divided by Kafka's is to be."""
    target = TARGETS.get(kind)
    return target.get(policy) if isinstance(target, dict) else target


def is_met(kind: Kind, value: float, target: float) -> bool:
    return value >= target if kind.more_is_better else value <= target
