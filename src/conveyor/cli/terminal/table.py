"""Prints tables: with rich on a terminal; elsewhere with aligned columns, one line per row, for grep and awk."""

import sys
from collections.abc import Iterator, Sequence

import typer

_WIDEST = 40
"""Cells of other rows are padded no further than this: one long name leaves most lines short."""

Cell = str | int | float | None
"""None and the empty string are shown as `-`."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print rows under their column names. Columns of numbers are right-aligned."""
    shown = [[_shown(cell) for cell in row] for row in rows]
    to_right = [all(not isinstance(row[number], str) for row in rows) for number in range(len(columns))]
    if sys.stdout.isatty():
        _draw(columns, shown, to_right)
        return
    for line in _aligned([list(columns), *shown], to_right):
        typer.echo(line)


def _shown(cell: Cell) -> str:
    if cell is None or cell == "":
        return "-"
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def _aligned(rows: list[list[str]], to_right: list[bool]) -> Iterator[str]:
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, to_right, strict=True)
        yield "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()


def _draw(columns: Sequence[str], rows: list[list[str]], to_right: list[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, right in zip(columns, to_right, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)
