"""A picture of the ratios: one bar a row, from 1, where the two are equal, on a logarithmic scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ratio_text
from benchmarks.rounds import Comparison

_COLOURS = {True: "#2f7d5b", False: "#c0492f", None: "#8a94a0"}
_MEANINGS = {True: "target met", False: "target missed", None: "no target"}
_BAR_INCHES = 0.24
_TITLES = {
    True: "More is better: to the right of 1 Conveyor leads",
    False: "Less is better: to the left of 1 Conveyor leads",
}


def draw(compared: Sequence[Comparison], title: str, path: Path) -> None:
    """Write a PNG with a panel for each direction. Rows without a ratio are left out."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = [
        (more, [each for each in compared if each.ratio and each.kind.more_is_better is more]) for more in (True, False)
    ]
    panels = [(more, rows) for more, rows in panels if rows]
    if not panels:
        return
    heights = [len(rows) + 2 for _, rows in panels]
    figure, axes = plt.subplots(
        len(panels), 1, squeeze=False, figsize=(11, _BAR_INCHES * sum(heights) + 1.6), height_ratios=heights,
        layout="constrained",
    )  # fmt: skip
    for (more, rows), panel in zip(panels, axes[:, 0], strict=True):
        _draw_panel(panel, rows, _TITLES[more])
    figure.suptitle(title)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_panel(panel: Any, rows: Sequence[Comparison], title: str) -> None:
    ratios = [each.ratio or 1.0 for each in rows]
    places = range(len(rows))
    panel.barh(places, [each - 1 for each in ratios], left=1, color=[_COLOURS[each.met] for each in rows], height=0.7)
    targets = [(place, each.target) for place, each in enumerate(rows) if each.target is not None]
    panel.plot([target for _, target in targets], [place for place, _ in targets], "|", color="black", ms=11, mew=2)
    for place, ratio in zip(places, ratios, strict=True):
        beside = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8}
        panel.annotate(ratio_text(ratio), (1.01, place), annotation_clip=False, **beside)
    panel.axvline(1, color="black", lw=0.8)
    panel.set_xscale("log")
    _set_range(panel, [*ratios, *(target for _, target in targets), 1.0])
    panel.set_yticks(places, [f"{each.name} [{each.policy}]" for each in rows], fontsize=8)
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
