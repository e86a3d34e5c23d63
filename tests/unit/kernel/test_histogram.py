"""Quantiles that are estimated from the buckets of a histogram."""

import pytest

from conveyor.kernel.histogram import quantile

BOUNDS = (10, 20, 50)


@pytest.mark.parametrize(
    ("fraction", "counts", "expected"),
    [
        (0.5, [0, 0, 0, 0], None),
        (0.5, [2, 0, 0, 0], 5),
        (1, [2, 0, 0, 0], 10),
        (0.5, [0, 4, 0, 0], 15),
        (0.5, [1, 0, 1, 0], 10),
        (0.75, [1, 0, 1, 0], 35),
        (0.99, [50, 0, 0, 50], 50),
        (0.5, [0, 0, 0, 7], 50),
        (0, [0, 3, 0, 0], 10),
    ],
)
def test_quantile_is_interpolated_within_its_bucket(fraction: float, counts: list[int], expected: float | None) -> None:
    found = quantile(fraction, BOUNDS, counts)
    assert found == expected
    assert found is None or isinstance(found, float)


def test_rounding_does_not_reach_an_empty_bucket() -> None:
    for count in range(1, 2_000):
        found = quantile(0.99, BOUNDS, [count // 3, count - count // 3, 0, 0])
        assert found is not None
        assert 10 < found <= 20 or count < 3
