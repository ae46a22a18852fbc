"""The command of the command line that shows or does the same as the page."""

from __future__ import annotations

import shlex


def command(*words: object, **options: object) -> str:
    """`conquiet` with words and options, as it is typed in a shell; `None` and `False` are left out."""
    parts = ["conquiet", *map(str, words)]
    for name, value in options.items():
        option = f"--{name.strip('_').replace('_', '-')}"
        if value is True:
            parts.append(option)
        elif value is not None and value is not False and value != "":
            parts += [option, str(value)]
    return shlex.join(parts)
