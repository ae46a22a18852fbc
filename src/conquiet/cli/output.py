"""Output: one JSON document or a text for people, never both; passwords in neither."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from conquiet.cli.exits import NotConfirmedError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Output:
    """Where a command writes: results to stdout, questions and errors to stderr."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json

    def show(self, document: Mapping[str, Any], text: str | Callable[[], None]) -> None:
        """The result: the document as one line of JSON, or the text, or what `text` prints."""
        if self.is_json:
            self.line(json.dumps(document, ensure_ascii=False))
        elif isinstance(text, str):
            self.line(text)
        else:
            text()

    def line(self, text: str) -> None:
        """One line, flushed: another program may be reading a pipe."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table; off a terminal it is as wide as its content, so that no cell is cut."""
        self.console().print(self.table(columns, rows))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
        """A table; a column whose name begins with > has figures, and is aligned to the right."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
            table.add_column(column.lstrip(">"), justify=justify, overflow="fold")
        for row in rows:
            # Text, so that a name with [brackets] is not taken for markup.
            table.add_row(*(Text(_shown(value)) for value in row))
        return table

    def console(self) -> Console:
        """A console on today's stdout."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else 1_000
        return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)

    def confirm(self, question: str, *, is_yes: bool) -> None:
        """Go on if `--yes` was given or the user at the terminal types yes.

        Raises:
            NotConfirmedError: else.
        """
        if is_yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotConfirmedError(
                f"{question} This needs --yes where no terminal is; --dry-run changes nothing."
            )
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotConfirmedError("Nothing was changed.")


def forget_reader() -> None:
    """The reader of our output has ended, as `head` does: the interpreter must not write to it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
