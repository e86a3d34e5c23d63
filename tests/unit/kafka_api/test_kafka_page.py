"""docs/kafka.md lists the served APIs, their versions, and the rights that they need."""

from pathlib import Path

from conveyor.kafka_api.registry import HANDLERS
from conveyor.kafka_api.wire.versions import SERVED_APIS

PAGE = Path(__file__).parents[3] / "docs" / "kafka.md"


def row(key: int) -> str:
    api = SERVED_APIS[key]
    name = "".join(word.capitalize() for word in HANDLERS[key].__module__.rpartition(".k")[2].split("_")[1:])
    needs = ", ".join(map(str, api.needs)) or "none"
    return f"| {key} | {name} | {api.min_version} | {api.max_version} | {needs} |"


def test_the_page_lists_every_api_with_its_versions() -> None:
    lines = PAGE.read_text().splitlines()
    begin = lines.index("|---|---|---|---|---|") + 1
    assert lines[begin : begin + len(SERVED_APIS)] == [row(key) for key in sorted(SERVED_APIS)]
    assert len(lines) == begin + len(SERVED_APIS), "no other rows"
