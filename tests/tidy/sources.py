"""The files that the tidiness tests read."""

import ast
import gc
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("src", "simulation")
CODE = (*PRODUCT, "tests", "benchmarks")


def tracked_files() -> list[Path]:
    """What the repository holds or is about to hold: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def modules(*folders: str) -> Iterator[Path]:
    """Every Python file below some folders of the repository."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    parsed = ast.parse(path.read_text())
    gc.freeze()  # A million nodes that stay would be visited by each pass of the garbage collector.
    return parsed


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
