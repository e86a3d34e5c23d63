"""`conveyor settings`: every setting there is. The page docs/settings.md is its output with --markdown."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any

import typer

from conveyor.cluster.setting_names import BrokerSetting
from conveyor.settings.setting import type_names
from conveyor.settings.tree import Settings, topic_setting_name

_INTRODUCTION = """\
# Settings

Made by `conveyor settings --markdown`; do not edit.

A setting is given, first wins, by a flag (`conveyor serve --set topics.segment_bytes=1048576`), by the environment
(`CONVEYOR_TOPICS_SEGMENT_BYTES=1048576`; `CONVEYOR_DATA_DIR` is what `--data-dir` is, and so for every flag of
`conveyor serve`), or in `conveyor.toml`:

```toml
[topics]
segment_bytes = 1048576
```

Settings marked *live* can also be changed while the broker runs, for one broker or for all, by clients such as
`kafka-configs --alter --entity-type brokers --entity-default --add-config log.retention.ms=60000`. The change takes
effect at once and is kept in the metadata store, where it has precedence over all of these.

An unknown name, a wrong type, a value out of range, or two settings that contradict each other stop the start with a
line that says what to change.
"""


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation page.")] = False,
) -> None:
    """List every setting: its default, its unit, and what it means."""
    if markdown:
        typer.echo(render_markdown(), nl=False)
        return
    for section in fields(Settings):
        for each in fields(section.default_factory):  # type: ignore[arg-type]
            unit = f" {each.metadata['unit']}" if each.metadata["unit"] else ""
            typer.echo(f"{section.name}.{each.name} = {_default(each)}{unit}")
            typer.echo(f"    {each.metadata['doc']}")


def render_markdown() -> str:
    """The documentation page: one table per section."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    for section in fields(Settings):
        kind: Any = section.default_factory
        yield f"## `{section.name}`: {kind.__doc__}\n"
        yield "| setting | default | takes | what it means |\n|---|---|---|---|"
        for each in fields(kind):
            yield f"| {_names(section.name, each)} | `{_default(each)}` | {_takes(each)} | {each.metadata['doc']} |"
        yield ""


def _names(section: str, each: Any) -> str:
    setting = BrokerSetting(section=section, declared=each)
    names = f"`{setting.path}`" + (" *live*" if setting.is_live else "")
    if section == "topics":
        return f"{names}; of a topic: `{topic_setting_name(each)}`"
    kafka = each.metadata["kafka"]
    return f"{names}; Kafka: `{kafka}`" if kafka else names


def _takes(each: Any) -> str:
    metadata = each.metadata
    if metadata["choices"]:
        return " or ".join(f"`{choice}`" for choice in metadata["choices"])
    limits = ""
    if metadata["low"] is not None:
        limits += f", from {metadata['low']}"
    if metadata["high"] is not None:
        limits += f" to {metadata['high']}"
    return (metadata["unit"] or type_names[type(each.default)]) + limits


def _default(each: Any) -> str:
    return str(each.default).lower() if isinstance(each.default, bool) else str(each.default) or "(empty)"
