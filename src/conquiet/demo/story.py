"""What both forms of the demo have in common: where they play, and what they tell in the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from conquiet.demo.killing import Killed
from conquiet.demo.picture import save_picture
from conquiet.demo.proof import Proof
from conquiet.demo.terminal_picture import draw_picture
from conquiet.demo.watching import Timeline

_WIDEST = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the command line asked for."""

    orders: int
    directory: Path
    #: Takes one order out of the database before the proof, to see it fail.
    is_one_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A run that came to its end, right or wrong."""

    timeline: Timeline
    killed: Killed
    proof: Proof


def tell(story: Story, console: Console, picture: Path, *, title: str) -> None:
    """Print the picture, the table and the sentence; write the PNG file."""
    console.print()
    console.print(f"Orders over time: {title}", style="bold", highlight=False, soft_wrap=True)
    console.print(draw_picture(story.timeline, width=min(console.width, _WIDEST)), highlight=False)
    console.print()
    console.print(story.proof.table(), highlight=False)
    save_picture(story.timeline, picture, title=title)
    console.print(f"The picture: {picture}", highlight=False, soft_wrap=True)
    style = "bold green" if story.proof.is_right else "bold white on red"
    console.print(story.proof.sentence(), style=style, highlight=False, soft_wrap=True)
