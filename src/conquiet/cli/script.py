"""The console script: the one module of the command line tool that needs no extra."""

from __future__ import annotations

import sys

from conquiet.cli.exits import ExitCode
from conquiet.errors import MissingExtraError
from conquiet.extras import needs_extra


def main() -> None:
    """Run the tool, or print what it needs."""
    try:
        with needs_extra("cli", "click", "rich", "typer", part="the command conquiet"):
            from conquiet.cli.main import app
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    app()
