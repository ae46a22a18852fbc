"""The picture of a run as a PNG file: every message over time, the stages, the crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo.watcher import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACKED, _PENDING, _WAITING = "#2a9d8f", "#e76f51", "#f4d58d"
_INK, _CRASH, _FAINT = "#22313f", "#c1121f", "#8d99ae"
_READERS = ("#4361ee", "#7209b7")
_SIZE_INCHES, _DPI = (11.0, 6.2), 120


def save_picture(timeline: Timeline, path: Path, *, title: str) -> None:
    """Draw the timeline into a PNG file."""
    # Here: the demo starts without waiting for it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9.5, "axes.edgecolor": _FAINT, "text.color": _INK}):
        has_totals = any(moment.totals for moment in timeline.moments)
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
        ratios = [3, 1, 1] if has_totals else [3, 1]
        axes: list[Axes] = list(figure.subplots(len(ratios), sharex=True, height_ratios=ratios))
        figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
        _draw_orders(axes[0], timeline)
        _draw_pending(axes[1], timeline)
        if has_totals:
            _draw_totals(axes[2], timeline)
        _draw_stages(axes, timeline)
        axes[-1].set_xlabel("seconds since the first stage")
        figure.savefig(path, pil_kwargs={"optimize": True})


def _draw_orders(axes: Axes, timeline: Timeline) -> None:
    moments = timeline.moments
    at = [moment.at_s for moment in moments]
    axes.stackplot(
        at,
        [moment.orders.acked for moment in moments],
        [moment.orders.pending for moment in moments],
        [moment.orders.waiting for moment in moments],
        colors=[_ACKED, _PENDING, _WAITING],
        labels=["acked", "pending", "waiting"],
        step="post",
    )
    rows = [moment.rows for moment in moments]
    axes.plot(at, rows, color=_INK, linewidth=1.4, linestyle="--", label="rows in the database")
    axes.set_ylabel("orders")
    axes.legend(loc="center right", framealpha=0.92, edgecolor="none")


def _draw_pending(axes: Axes, timeline: Timeline) -> None:
    at = [moment.at_s for moment in timeline.moments]
    pending = [moment.orders.pending for moment in timeline.moments]
    axes.fill_between(at, pending, step="post", color=_PENDING, linewidth=0)
    axes.set_ylabel("pending")


def _draw_totals(axes: Axes, timeline: Timeline) -> None:
    moments = timeline.moments
    at = [moment.at_s for moment in moments]
    readers = list(moments[-1].totals)
    published = [max((total.enqueued for total in moment.totals.values()), default=0) for moment in moments]
    axes.fill_between(at, published, step="post", color=_WAITING, linewidth=0, label="published by Spark")
    for reader, colour, style in zip(readers, _READERS, ("-", "--"), strict=False):
        acked = [moment.totals[reader].acked if reader in moment.totals else 0 for moment in moments]
        axes.step(at, acked, where="post", color=colour, linewidth=1.6, linestyle=style, label=reader)
    axes.set_ylabel("totals")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)


def _draw_stages(axes: list[Axes], timeline: Timeline) -> None:
    end = max([span.end_s for span in timeline.spans] + [moment.at_s for moment in timeline.moments])
    for panel in axes:
        panel.set_xlim(0, end)
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.yaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
        for number, span in enumerate(timeline.spans):
            if number % 2:
                panel.axvspan(span.start_s, span.end_s, color=_FAINT, alpha=0.13, linewidth=0, zorder=0)
            panel.axvline(span.start_s, color=_FAINT, linewidth=0.6, alpha=0.6)
        if timeline.crash_s is not None:
            panel.axvline(timeline.crash_s, color=_CRASH, linewidth=1.8)
    _name_stages(axes[0], timeline)


def _name_stages(axes: Axes, timeline: Timeline) -> None:
    frame = axes.get_xaxis_transform()
    for number, span in enumerate(timeline.spans, start=1):
        middle = (span.start_s + span.end_s) / 2
        axes.text(middle, 1.02, str(number), transform=frame, ha="center", fontweight="bold", fontsize=9)
    names = "    ".join(f"{number} {span.title}" for number, span in enumerate(timeline.spans, start=1))
    axes.set_title(_wrapped(names), loc="left", fontsize=9, pad=20, color=_INK)
    if timeline.crash_s is not None:
        axes.annotate(
            "SIGKILL",
            (timeline.crash_s, 0.93),
            xycoords=frame,
            xytext=(5, 0),
            textcoords="offset points",
            color="white",
            fontweight="bold",
            fontsize=9,
            va="center",
            bbox={"boxstyle": "round,pad=0.25", "facecolor": _CRASH, "edgecolor": "none"},
        )


def _wrapped(names: str, width: int = 140) -> str:
    lines = [""]
    for name in names.split("    "):
        if lines[-1] and len(lines[-1]) + len(name) > width:
            lines.append("")
        lines[-1] += name + "    "
    return "\n".join(line.rstrip() for line in lines)
