"""Tests of which `make test` has a part only, because each takes long: `make sweep` runs the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def part_of(values: Iterable[Any], *chosen: object) -> list[Any]:
    """Return the values of a parameter, of which `make test` has only those that are chosen."""
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.sweep) for value in values]


def all_but(values: Iterable[Any], *left_out: object) -> list[Any]:
    """As `part_of`, with those that `make test` leaves out."""
    return [pytest.param(value, marks=pytest.mark.sweep) if value in left_out else value for value in values]
