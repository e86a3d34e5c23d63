"""What filters leave of a plan, and what Spark has still to apply."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import datasource as conditions

from pyspark_conveyor.source.pushdown import Pushed, push

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_772_366_400_000


@pytest.mark.parametrize(
    ("condition", "pushed", "is_applied"),
    [
        (conditions.EqualTo(("partition",), 3), Pushed(numbers=frozenset([3])), True),
        (conditions.In(("partition",), (1, 2)), Pushed(numbers=frozenset([1, 2])), True),
        (conditions.GreaterThan(("offset",), 5), Pushed(start=6), True),
        (conditions.GreaterThanOrEqual(("offset",), 5), Pushed(start=5), True),
        (conditions.LessThan(("offset",), 5), Pushed(end=5), True),
        (conditions.LessThanOrEqual(("offset",), 5), Pushed(end=6), True),
        (conditions.EqualTo(("offset",), 5), Pushed(start=5, end=6), True),
        (conditions.GreaterThanOrEqual(("timestamp",), NOON), Pushed(since_ms=NOON_MS), False),
        (conditions.LessThan(("timestamp",), NOON), Pushed(), False),
        (conditions.GreaterThan(("partition",), 3), Pushed(), False),
        (conditions.Not(conditions.EqualTo(("partition",), 3)), Pushed(), False),
        (conditions.EqualTo(("topic",), "t"), Pushed(), False),
        (conditions.IsNotNull(("offset",)), Pushed(), False),
        (conditions.EqualTo(("headers", "offset"), 1), Pushed(), False),
    ],
)
def test_one_condition(condition: conditions.Filter, pushed: Pushed, is_applied: bool) -> None:
    assert push([condition]) == (pushed, [] if is_applied else [condition])


def test_conditions_narrow_each_other() -> None:
    pushed, left = push(
        [
            conditions.In(("partition",), (1, 2)),
            conditions.EqualTo(("partition",), 2),
            conditions.GreaterThan(("offset",), 10),
            conditions.GreaterThan(("offset",), 4),
            conditions.LessThan(("offset",), 20),
        ]
    )
    assert (pushed, left) == (Pushed(numbers=frozenset([2]), start=11, end=20), [])
