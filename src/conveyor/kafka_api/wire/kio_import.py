"""The first import of `kio`, without Hypothesis: `conveyor.kafka_api` runs it before any module of this package.

If Hypothesis is installed, `kio` imports it and registers strategies for its types. In a user's test environment that
would cost each start of a broker up to two seconds and 200 MB, and leave a `.hypothesis` directory behind. So this
module hides Hypothesis from the thread that loads `kio`, and from no other, until `kio` has looked for it once. If the
program has already imported Hypothesis, `kio` still registers its strategies.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType

_HIDDEN = "hypothesis"


class HidingFinder(MetaPathFinder):
    """Finds no module, and hides Hypothesis from the thread that created this finder."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _HIDDEN and get_ident() == self._thread:
            raise ModuleNotFoundError(f"{_HIDDEN} is hidden from kio", name=_HIDDEN)
        return None


def load_kio() -> None:
    """Import the part of `kio` that looks for Hypothesis; later imports of other parts do not look again."""
    finder = HidingFinder()
    sys.meta_path.insert(0, finder)
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        sys.meta_path.remove(finder)
