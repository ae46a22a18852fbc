"""Output: one JSON document or a text for people, never both; passwords in neither."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conquiet.cli.exits import NotConfirmedError

if TYPE_CHECKING:
    from rich.console import Console

Document = Mapping[str, Any]


class Output:
    """Where a command writes: results to stdout, questions and errors to stderr."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def show(self, document: Document, text: Callable[[], None]) -> None:
        """The result: the document as one line of JSON, or what `text` prints."""
        if self.is_json:
            self.write_json(document)
        else:
            text()

    def write_json(self, document: Document) -> None:
        """One line, flushed: others may be reading a pipe."""
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """One plain line for people."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table; off a terminal it is as wide as its content, so that no cell is cut."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            # Names and ids to the left, figures to the right.
            table.add_column(
                column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
            )
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        self.console().print(table)

    def console(self) -> Console:
        """A console on today's stdout."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else 1_000
        return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)

    def confirm(self, question: str, *, is_yes: bool) -> None:
        """Go on if `--yes` was given or somebody at the terminal says yes.

        Raises:
            NotConfirmedError: else.
        """
        if is_yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotConfirmedError(
                f"{question} This needs --yes where no terminal is; --dry-run only tells."
            )
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotConfirmedError("Nothing was changed.")


def forget_reader() -> None:
    """Whoever read our output has gone, as `head` does: the interpreter must not write to it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cell(value: Any) -> Any:
    from rich.text import Text

    # Text, so that a name with [brackets] is not taken for markup.
    return value if isinstance(value, Text) else Text(shown_value(value))


def shown_value(value: Any) -> str:
    """A value for people: unknown is a question mark, numbers have thousands."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def shown_age(milliseconds: int | None) -> str:
    """An age in its two largest units."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1_000
    for size, unit, smaller, small_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // smaller} {small_unit}"
    return f"{seconds} s"


def shown_lag(lag: int | None) -> str:
    """A lag; one that nobody knows is not a zero."""
    return "unknown" if lag is None else f"{lag:,}"
