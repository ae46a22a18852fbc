"""The console script: the one module of the command line tool that needs no extra."""

from __future__ import annotations

import sys

from conquiet import __version__


def main() -> None:
    """Run the tool, or print what it needs."""
    if sys.argv[1:] == ["--version"]:
        # Before anything is imported that the other commands need.
        print(f"conquiet {__version__}")
        return
    from conquiet.cli.exits import ExitCode
    from conquiet.errors import MissingExtraError
    from conquiet.extras import needs_extra

    try:
        with needs_extra("cli", "click", "rich", "typer", part="the command conquiet"):
            from conquiet.cli.main import app
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    app()
