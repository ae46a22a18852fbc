"""What both forms of the demo have in common: where they run, and what they print at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from examples.demo.crash import Killed
from examples.demo.picture import save_picture
from examples.demo.proof import Proof
from examples.demo.terminal_picture import draw_picture
from examples.demo.watcher import Timeline

_WIDEST = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of the command line."""

    orders: int
    directory: Path
    #: Takes one order out of the database before the proof, to see it fail.
    is_one_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run that finished, right or wrong."""

    timeline: Timeline
    killed: Killed
    proof: Proof


def print_result(result: Result, console: Console, picture: Path, *, title: str) -> None:
    """Print the picture, the table and the sentence; write the PNG file."""
    console.print()
    console.print(f"Orders over time: {title}", style="bold", highlight=False, soft_wrap=True)
    console.print(draw_picture(result.timeline, width=min(console.width, _WIDEST)), highlight=False)
    console.print()
    console.print(result.proof.table(), highlight=False)
    save_picture(result.timeline, picture, title=title)
    console.print(f"The picture: {picture}", highlight=False, soft_wrap=True)
    style = "bold green" if result.proof.is_right else "bold white on red"
    console.print(result.proof.sentence(), style=style, highlight=False, soft_wrap=True)
