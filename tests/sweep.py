"""Tests of which `make test` has a part only, because each takes long: `make sweep` runs the others."""

from collections.abc import Collection
from typing import Any

import pytest


def part_of(values: Collection[Any], *chosen: object) -> list[Any]:
    """Return the values of a parameter, of which `make test` has only those that are chosen."""
    return all_but(values, *(value for value in values if value not in chosen))


def all_but(values: Collection[Any], *left_out: object) -> list[Any]:
    """As `part_of`, with those that `make test` leaves out."""
    return [pytest.param(value, marks=pytest.mark.sweep) if value in left_out else value for value in values]
