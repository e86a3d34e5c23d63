"""Prints the sizes by which the structure of the product is judged: `python -m tests.tidy.figures`.

They are not enforced: a number says where to look, and a limit would shape the code. `test_sizes` has what is enforced.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import modules, shown, tree

Function = ast.FunctionDef | ast.AsyncFunctionDef
_ROLES = {"Leader", "Follower", "Role"}


def main() -> None:
    for name, value in figures():
        print(f"{name:<58} {value}")


def figures() -> Iterator[tuple[str, str]]:
    """Yield each figure's name and value, in the order in which they are printed."""
    for folder in ("src/conveyor", "src/pyspark_conveyor", "simulation", "tests"):
        yield f"lines of {folder}", f"{sum(len(path.read_text().splitlines()) for path in modules(folder)):,}"
    paths = list(modules("src/conveyor"))
    yield "files of src/conveyor", f"{len(paths):,}"
    yield "callbacks: parameters with a Callable", str(sum(callbacks(tree(path)) for path in paths))
    of_broker = sum(callbacks(tree(path)) for path in modules("src/conveyor/broker"))
    yield "callbacks in src/conveyor/broker", str(of_broker)
    classes = dict(_classes(paths))
    yield from _widest("constructor arguments", {name: len(arguments(node)) for name, node in classes.items()}, 6)
    working = {name: node for name, node in classes.items() if not _is_record(node)}
    yield from _widest("public members", {name: len(public_members(node)) for name, node in working.items()}, 20)
    yield "except Exception", str(sum(caught_exceptions(tree(path)) for path in paths))
    yield "isinstance of roles", str(sum(role_checks(tree(path)) for path in paths))


def callbacks(module: ast.AST) -> int:
    """Count the parameters of functions whose annotation names `Callable`."""
    return sum("Callable[" in ast.unparse(each.annotation) for each in _parameters(module) if each.annotation)


def arguments(node: ast.ClassDef) -> list[str]:
    """Return the names that a class's own `__init__` takes, without `self`."""
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            return [each.arg for each in _parameters_of(function)][1:]
    return []


def public_members(node: ast.ClassDef) -> set[str]:
    """Return the public methods, properties, class fields and fields set in `__init__` of a class."""
    members: set[str] = set()
    for statement in node.body:
        if isinstance(statement, Function):
            members.add(statement.name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            members.add(statement.target.id)
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            members |= {
                each.attr
                for each in ast.walk(statement)
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            }
    return {name for name in members if not name.startswith("_")}


def caught_exceptions(module: ast.AST) -> int:
    handlers = [each for each in ast.walk(module) if isinstance(each, ast.ExceptHandler)]
    return sum(isinstance(each.type, ast.Name) and each.type.id == "Exception" for each in handlers)


def role_checks(module: ast.AST) -> int:
    """Count the calls of `isinstance` that ask whether a partition is led or followed here."""
    calls = [each for each in ast.walk(module) if isinstance(each, ast.Call) and len(each.args) == 2]
    return sum(
        getattr(each.func, "id", "") == "isinstance"
        and bool(_ROLES & {name.id for name in ast.walk(each.args[1]) if isinstance(name, ast.Name)})
        for each in calls
    )


def _widest(what: str, counts: dict[str, int], most: int) -> Iterator[tuple[str, str]]:
    above = sorted(((count, name) for name, count in counts.items() if count > most), reverse=True)
    yield f"classes with more than {most} {what}", str(len(above))
    for count, name in above[:10]:
        yield f"  {name}", str(count)


def _classes(paths: list[Path]) -> Iterator[tuple[str, ast.ClassDef]]:
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                yield f"{Path(shown(path)).relative_to('src/conveyor')}: {node.name}", node


def _is_record(node: ast.ClassDef) -> bool:
    """Return whether a class is a plain record, whose fields are its purpose."""
    if node.decorator_list and "dataclass" in ast.unparse(node.decorator_list[0]):
        return True
    methods = [each for each in node.body if isinstance(each, Function) and not each.name.startswith("_")]
    return not methods or any("Struct" in ast.unparse(each) or "Enum" in ast.unparse(each) for each in node.bases)


def _parameters(module: ast.AST) -> Iterator[ast.arg]:
    for node in ast.walk(module):
        if isinstance(node, Function):
            yield from _parameters_of(node)


def _parameters_of(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


if __name__ == "__main__":
    main()
