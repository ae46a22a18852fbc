"""What a command that fails prints: one sentence on stderr, an exit code, no password."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from conquiet.cli.exits import ExitCode, exit_code_of
from conquiet.masking import mask, remember_url

#: Arguments of the library whose options have other names.
_OPTIONS = {
    "base_delay_ms": "--retry-delay",
    "consumer_name": "--consumer",
    "delay_ms": "--delay",
    "heartbeat_ttl_s": "--heartbeat-ttl",
    "idle_ms": "--idle",
    "max_delay_ms": "--max-retry-delay",
    "max_duration_s": "--max-duration",
    "max_outage_s": "--max-outage",
    "min_idle_ms": "--min-idle",
    "older_than_ms": "--older-than",
    "retention_length": "--keep",
    "retention_ms": "--keep-for",
    "trim_every_s": "--trim-every",
}


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
            code = _print_error(error, arguments)
        sys.exit(int(code or 0))


def _print_error(error: Exception, arguments: Sequence[str]) -> int:
    code, kind, text = int(exit_code_of(error)), type(error).__name__, str(error)
    is_json = "--json" in arguments
    if isinstance(error, typer.TyperException):
        code, kind, text = error.exit_code, "UsageError", error.format_message()
        context = getattr(error, "ctx", None)
        if text and context is not None:
            text = f"{text} Try '{context.command_path} --help'."
    elif type(error) in (ValueError, TypeError):
        text = _in_words_of_options(text, arguments)
    elif code == ExitCode.BUG:
        text = f"a bug in conquiet, please report it:\n{''.join(traceback.format_exception(error))}"
    text = mask(text)
    if is_json:
        document = {"error": {"type": kind, "message": text, "exit_code": code}}
        sys.stderr.write(json.dumps(document, ensure_ascii=False) + "\n")
    elif text:
        sys.stderr.write(f"conquiet: {text}\n")
    return code


def _in_words_of_options(text: str, arguments: Sequence[str]) -> str:
    """A sentence of the library about its arguments, with the options that were typed in their place."""
    typed = {argument.partition("=")[0] for argument in arguments}

    def option_of(match: re.Match[str]) -> str:
        option = _OPTIONS.get(match[0], f"--{match[0].replace('_', '-')}")
        return option if option in typed else match[0]

    # A word of one part may be any word, but at the beginning of the sentence it is the argument.
    return re.sub(r"^[a-z]+\b|\b[a-z]+(?:_[a-z]+)+\b", option_of, text)
