"""Callbacks that wait are kept in the order of their arrival.

A set of functions is iterated in the order of their addresses: a simulated story would differ from run to run, and the
request that has waited longest would not be served first.
"""

import re

from tests.tidy.sources import PRODUCT, modules, shown

UNORDERED = re.compile(r"\bset\[\s*\"?(Callable|_Waiting)\b")


def test_no_callbacks_are_kept_in_a_set() -> None:
    assert not [shown(path) for path in modules(*PRODUCT) if UNORDERED.search(path.read_text())]
