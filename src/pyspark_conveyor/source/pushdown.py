"""Filters that a batch read applies to its plan, so that it fetches less. Pure.

Conditions on `partition` and `offset` are exact. `timestamp >= t` moves the start to the first record at or after t:
all records before it are older. The end cannot be moved, because the times of producers need not increase; Spark
applies the condition on `timestamp` to the rows as well.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The records that filters leave. numbers: the partitions, or None for all; offsets: [start, end)."""

    numbers: frozenset[int] | None = None
    start: int = 0
    end: int = (1 << 63) - 1
    since_ms: int | None = None


def push(filters: Iterable[Any]) -> tuple[Pushed, list[Any]]:
    """Return what the filters leave, and the filters that Spark has still to apply."""
    pushed, left = Pushed(), []
    for each in filters:
        column = each.attribute[0] if len(getattr(each, "attribute", ())) == 1 else None
        applied = _applied(pushed, column, each)
        if applied is None or column == "timestamp":
            left.append(each)
        pushed = applied or pushed
    return pushed, left


def _applied(pushed: Pushed, column: str | None, condition: Any) -> Pushed | None:
    """Return what one more filter leaves; None if it cannot be applied."""
    if column == "timestamp":
        return _since(pushed, condition)
    if column == "partition":
        return _of_partitions(pushed, condition)
    if column == "offset":
        return _of_offsets(pushed, condition)
    return None


def _since(pushed: Pushed, condition: Any) -> Pushed | None:
    if not isinstance(condition, conditions.GreaterThan | conditions.GreaterThanOrEqual | conditions.EqualTo):
        return None
    if not isinstance(condition.value, datetime):
        return None
    moment = condition.value
    since_ms = math.floor((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return replace(pushed, since_ms=max(0, since_ms, pushed.since_ms or 0))


def _of_partitions(pushed: Pushed, condition: Any) -> Pushed | None:
    if isinstance(condition, conditions.EqualTo):
        wanted = frozenset([condition.value])
    elif isinstance(condition, conditions.In):
        wanted = frozenset(condition.value)
    else:
        return None
    return replace(pushed, numbers=wanted if pushed.numbers is None else wanted & pushed.numbers)


def _of_offsets(pushed: Pushed, condition: Any) -> Pushed | None:
    kind, value = type(condition), getattr(condition, "value", None)
    if not isinstance(value, int):
        return None
    bounds = {
        conditions.EqualTo: (value, value + 1),
        conditions.GreaterThan: (value + 1, pushed.end),
        conditions.GreaterThanOrEqual: (value, pushed.end),
        conditions.LessThan: (pushed.start, value),
        conditions.LessThanOrEqual: (pushed.start, value + 1),
    }.get(kind)
    if bounds is None:
        return None
    return replace(pushed, start=max(pushed.start, bounds[0]), end=min(pushed.end, bounds[1]))
