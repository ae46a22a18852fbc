"""Names of functions and classes, the same in the program that enqueues and in the worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def name_of(thing: Callable[..., Any]) -> str:
    """Module and name of a function or a class."""
    module = thing.__module__
    if module == "__main__":
        # The same name in the worker that imports the module and in the program that runs it, by `python -m`
        # or as a file.
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name
        elif path:
            module = Path(path).stem
    return f"{module}.{thing.__qualname__}"
