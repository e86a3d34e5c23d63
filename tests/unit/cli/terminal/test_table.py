"""Tables, in a pipe and on a terminal."""

import sys

import pytest

from conveyor.cli.terminal.table import Cell, print_table

COLUMNS = ["topic", "lag", "member"]
ROWS: list[list[Cell]] = [["orders", 5, "a"], ["b", 12345, None]]


def test_pipe_gets_aligned_lines_without_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out == "topic     lag  member\norders      5  a\nb       12345  -\n"


def test_column_of_numbers_is_right_aligned_despite_missing_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["n", "rate"], [[1, None], [20, 2.55]])
    assert capsys.readouterr().out == " n  rate\n 1     -\n20   2.5\n"


def test_a_long_name_leaves_the_other_lines_short(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "state"], [["x" * 200, "Empty"], ["y", "Ongoing"]])
    first, *lines = capsys.readouterr().out.splitlines()[1:]
    assert first.split() == ["x" * 200, "Empty"]
    assert lines == [f"{'y':40}  Ongoing"]


def test_terminal_gets_a_drawn_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(COLUMNS, [["[red]orders", 5, "a"]])
    drawn = capsys.readouterr().out
    assert "─" in drawn
    assert "[red]orders" in drawn, "names are not markup"
