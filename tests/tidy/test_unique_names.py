"""Within the product a module's basename and a public class's name each mean one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.tidy.sources import PRODUCT, modules, shown, tree

EVERY_PACKAGE_HAS = {"__init__", "__main__"}


def test_no_module_basename_occurs_twice() -> None:
    assert not _repeated((path.stem, path) for path in modules(*PRODUCT) if path.stem not in EVERY_PACKAGE_HAS)


def test_no_public_class_name_occurs_twice() -> None:
    assert not _repeated((name, path) for path in modules(*PRODUCT) for name in _public_classes(path))


def _public_classes(path: Path) -> list[str]:
    return [node.name for node in tree(path).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def _repeated(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that several modules have, each with these modules."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in names:
        found[name].append(shown(path))
    return {name: paths for name, paths in found.items() if len(paths) > 1}
