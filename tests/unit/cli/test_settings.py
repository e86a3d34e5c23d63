"""`conveyor settings` lists every setting, also as the documentation page."""

from dataclasses import fields

from conveyor.settings.tree import Settings
from tests.unit.cli.commands import Run


def names() -> list[str]:
    settings = Settings()
    return [
        f"{section.name}.{setting.name}"
        for section in fields(Settings)
        for setting in fields(getattr(settings, section.name))
    ]


def test_every_setting_is_listed_with_its_default(run: Run) -> None:
    lines = run("settings").out.splitlines()
    assert [line.partition(" = ")[0] for line in lines[::2]] == names()
    assert "topics.segment_bytes = 1073741824 bytes" in lines
    assert "network.insecure = false" in lines


def test_the_page_has_a_row_for_every_setting(run: Run) -> None:
    page = run("settings", "--markdown").out
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == names()
    assert {row.count(" | ") for row in rows} == {3}
    assert (
        "| `broker.flush_threads` | `4` | threads, from 1 to 64 |"
        " Threads for the fsyncs that the kernel's own queue (Linux AIO) does not accept. |" in rows
    )
    assert page.startswith("# Settings\n")
