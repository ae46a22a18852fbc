"""The picture of a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(run: dict[str, Any], path: Path) -> None:
    """Bars for each kind of work, the fastest at the top; conquiet's own in another colour."""
    from matplotlib.figure import Figure

    headings = ("no-op", "SQLite commit", "PostgreSQL commit")
    figure = Figure(figsize=(15, 5.5), layout="constrained")
    for axes, heading in zip(figure.subplots(1, 3), headings, strict=True):
        rates = {name: one[heading] for name, one in run["systems"].items() if heading in one}
        names = sorted(rates, key=lambda name: rates[name])
        colours = ["#c2410c" if name.startswith("conquiet") else "#94a3b8" for name in names]
        bars = axes.barh(names, [rates[name] for name in names], color=colours)
        axes.bar_label(bars, [f"{rates[name]:,}" for name in names], padding=3, fontsize=8)
        axes.set_title(f"{heading}, tasks a second")
        axes.margins(x=0.18)
        axes.tick_params(axis="y", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Better of one worker and of two cores; {run['cores']} cores, {run['date']}")
    figure.savefig(path, dpi=110)
