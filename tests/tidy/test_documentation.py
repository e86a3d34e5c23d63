"""Every setting and every metric is documented."""

import re
from collections.abc import Iterator
from dataclasses import fields
from urllib.request import urlopen

from conveyor.cli.settings import render_markdown
from conveyor.settings.tree import Settings
from conveyor.testing import Broker
from tests.tidy.sources import ROOT


def words(page: str) -> set[str]:
    """The names on a page of the documentation."""
    return set(re.findall(r"[\w.]*\w", (ROOT / "docs" / page).read_text()))


def setting_names() -> Iterator[str]:
    """Ours, and Kafka's where it has one."""
    settings = Settings()
    for section in fields(Settings):
        for each in fields(getattr(settings, section.name)):
            yield f"{section.name}.{each.name}"
            if each.metadata["kafka"]:
                yield each.metadata["kafka"]


def metric_names(page: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))


def test_every_setting_is_documented() -> None:
    missing = set(setting_names()) - words("settings.md")
    assert not missing


def test_the_page_of_settings_is_as_the_command_makes_it() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == render_markdown(), "conveyor settings --markdown"


def test_every_metric_is_documented(memory_broker: Broker) -> None:
    with urlopen(f"{memory_broker.http_url}/metrics") as answer:
        printed = metric_names(answer.read().decode())
    assert "conveyor_partitions" in printed
    missing = printed - words("metrics.md")
    assert not missing


def test_every_setting_says_what_it_means() -> None:
    settings = Settings()
    for section in fields(Settings):
        for each in fields(getattr(settings, section.name)):
            assert str(each.metadata["doc"]).endswith("."), f"{section.name}.{each.name}"


def test_every_link_between_pages_leads_somewhere() -> None:
    """Relative links in the README and in docs/ name a file that is there."""
    broken = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
