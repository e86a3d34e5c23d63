"""A picture of the ratios: one bar a row, from 1, on a logarithmic scale. At 1 Conveyor and the other system are equal,
or Conveyor is where it aims."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import is_met
from benchmarks.report import ratio_text
from benchmarks.rounds import Comparison

_COLOURS = {True: "#2f7d5b", False: "#c0492f", None: "#8a94a0"}
_MEANINGS = {True: "target met", False: "target missed", None: "no target"}
_BAR_INCHES = 0.24
_DIRECTIONS = {True: "more is better: good is to the right of 1", False: "less is better: good is to the left of 1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A row with its ratio, and what this is to be."""

    label: str
    ratio: float
    target: float | None
    met: bool | None


def draw(compared: Sequence[Comparison], path: Path) -> None:
    """Write a PNG with a panel for each other system and direction, and one for targets of Conveyor's own."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = [(title, bars) for title, bars in _panels(compared) if bars]
    if not panels:
        return
    heights = [len(bars) + 2 for _, bars in panels]
    figure, axes = plt.subplots(
        len(panels), 1, squeeze=False, figsize=(11, _BAR_INCHES * sum(heights) + 1.6), height_ratios=heights,
        layout="constrained",
    )  # fmt: skip
    for (title, bars), panel in zip(panels, axes[:, 0], strict=True):
        _draw_panel(panel, bars, title)
    figure.suptitle("Conveyor's figure divided by another system's, or by its own target; medians")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panels(compared: Sequence[Comparison]) -> Iterator[tuple[str, list[_Bar]]]:
    for beside in dict.fromkeys(each.beside for each in compared if each.beside):
        for more, direction in _DIRECTIONS.items():
            rows = [each for each in compared if each.beside == beside and each.kind.more_is_better is more]
            yield f"Beside {beside}, {direction}", [_beside_other(each, each.ratio) for each in rows if each.ratio]
    for more, direction in _DIRECTIONS.items():
        rows = [each for each in compared if each.kind.more_is_better is more]
        own = [_beside_target(each, each.own_target) for each in rows if each.own_target]
        yield f"Beside targets of its own, {direction}", own


def _beside_other(each: Comparison, ratio: float) -> _Bar:
    return _Bar(label=f"{each.name} [{each.policy}]", ratio=ratio, target=each.target, met=each.met)


def _beside_target(each: Comparison, target: float) -> _Bar:
    met = is_met(each.kind, each.conveyor, target)
    return _Bar(label=f"{each.name} [{each.policy}]", ratio=each.conveyor / target, target=1.0, met=met)


def _draw_panel(panel: Any, bars: Sequence[_Bar], title: str) -> None:
    ratios = [each.ratio for each in bars]
    places = range(len(bars))
    panel.barh(places, [each - 1 for each in ratios], left=1, color=[_COLOURS[each.met] for each in bars], height=0.7)
    targets = [(place, each.target) for place, each in enumerate(bars) if each.target is not None]
    panel.plot([target for _, target in targets], [place for place, _ in targets], "|", color="black", ms=11, mew=2)
    for place, ratio in zip(places, ratios, strict=True):
        beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8}
        panel.annotate(ratio_text(ratio), (1.01, place), annotation_clip=False, **beside)
    panel.axvline(1, color="black", lw=0.8)
    panel.set_xscale("log")
    _set_range(panel, [*ratios, *(target for _, target in targets), 1.0])
    panel.set_yticks(places, [each.label for each in bars], fontsize=8)
    panel.invert_yaxis()
    panel.set_title(title, fontsize=10, loc="left")
    panel.spines[["top", "right"]].set_visible(False)


def _set_range(panel: Any, shown: Sequence[float]) -> None:
    """Round ticks, and room for the numbers at both ends."""
    low, high = min(shown) / 1.6, max(shown) * 1.6
    panel.set_xlim(low, high)
    round_numbers = [digit * 10.0**power for power in range(-4, 4) for digit in (1, 2, 5)]
    ticks = [tick for tick in round_numbers if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_xticks([], minor=True)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patches: list[Any] = [Patch(color=_COLOURS[met], label=meaning) for met, meaning in _MEANINGS.items()]
    return [*patches, Line2D([], [], marker="|", ls="", color="black", ms=11, mew=2, label="target")]
