"""How a command that fails tells so: one sentence on stderr, an exit code, no password."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from conquiet.cli.exits import ExitCode, exit_code_of
from conquiet.masking import mask, remember_url


class ConquietGroup(TyperGroup):
    """The root command: whatever leaves a command becomes a sentence and an exit code here."""

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
        run = partial(
            super().main, args=arguments, prog_name=prog_name or "conquiet", standalone_mode=False, **extra
        )
        sys.exit(_ended(run, is_json="--json" in arguments))


def _ended(run: Callable[[], Any], *, is_json: bool) -> int:
    try:
        code = run()
    except typer.TyperException as error:
        return _tell(_usage_of(error), code=error.exit_code, kind="UsageError", is_json=is_json)
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- it becomes an exit code and a sentence
        code = exit_code_of(error)
        text = str(error) if code != ExitCode.BUG else _report(error)
        return _tell(text, code=code, kind=type(error).__name__, is_json=is_json)
    return int(code or 0)


def _tell(text: str, *, code: int, kind: str, is_json: bool) -> int:
    text = mask(text)
    if is_json:
        text = json.dumps(
            {"error": {"type": kind, "message": text, "exit_code": int(code)}}, ensure_ascii=False
        )
    else:
        text = f"conquiet: {text}" if text else ""
    if text:
        sys.stderr.write(text + "\n")
    return code


def _usage_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    said = error.format_message()
    if context is None or not said:
        return said
    return f"{said} Try '{context.command_path} --help'."


def _report(error: Exception) -> str:
    told = "".join(traceback.format_exception(error))
    return f"a bug in conquiet, please report it:\n{told}"
