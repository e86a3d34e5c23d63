"""Which module of the product imports which: import statements in functions and for type checkers count as well."""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from tests.tidy.sources import PRODUCT, ROOT, modules, tree

Graph = dict[str, set[str]]


@cache
def import_graph() -> Graph:
    """The modules of the product that each of them imports. A package is imported only where a statement names it."""
    paths = {module_name(path): path for path in modules(*PRODUCT)}
    return {name: {*_imported(path, paths)} - {name} for name, path in paths.items()}


def module_name(path: Path) -> str:
    """`conveyor.log.log` from its file; a package has the name of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_statements(module: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, "") for `import module`, (module, name) for `from module import name`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules that can all be reached from each other: Tarjan's strongly connected components above one."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for imported in sorted(graph[module]):
            if imported not in numbers:
                visit(imported)
            if imported in path:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == numbers[module]:
            position = path.index(module)
            component = path[position:]
            del path[position:]
            if len(component) > 1:
                found.append(sorted(component))

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return sorted(found)


def _imported(path: Path, known: Collection[str]) -> Iterator[str]:
    for module, name in import_statements(tree(path)):
        if f"{module}.{name}" in known:
            yield f"{module}.{name}"
        elif module in known:
            yield module
