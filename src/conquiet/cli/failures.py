"""What a command that fails prints: one sentence on stderr, an exit code, no password."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from conquiet.cli.exits import ExitCode, exit_code_of
from conquiet.masking import mask, remember_url


class ConquietGroup(TyperGroup):
    """The root command: every error that leaves a command becomes a sentence and an exit code here."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and leave with an exit code."""
        arguments = list(sys.argv[1:] if args is None else args)
        # The parser repeats an argument in the wrong place: its password must be known by then.
        for argument in arguments:
            remember_url(argument)
        try:
            code = super().main(arguments, prog_name or "conquiet", standalone_mode=False, **extra)
        except (typer.Abort, KeyboardInterrupt):
            code = ExitCode.INTERRUPTED
        except Exception as error:  # noqa: BLE001 -- it becomes an exit code and a sentence
            code = _print_error(error, is_json="--json" in arguments)
        sys.exit(int(code or 0))


def _print_error(error: Exception, *, is_json: bool) -> int:
    code, kind, text = int(exit_code_of(error)), type(error).__name__, str(error)
    if isinstance(error, typer.TyperException):
        code, kind, text = error.exit_code, "UsageError", error.format_message()
        context = getattr(error, "ctx", None)
        if text and context is not None:
            text = f"{text} Try '{context.command_path} --help'."
    elif code == ExitCode.BUG:
        text = f"a bug in conquiet, please report it:\n{''.join(traceback.format_exception(error))}"
    text = mask(text)
    if is_json:
        document = {"error": {"type": kind, "message": text, "exit_code": code}}
        sys.stderr.write(json.dumps(document, ensure_ascii=False) + "\n")
    elif text:
        sys.stderr.write(f"conquiet: {text}\n")
    return code
