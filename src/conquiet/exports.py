"""Public names of a package that are imported on first use: an import costs what is used of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str,
    names_of: Mapping[str, str],
    *,
    importing: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        names_of: the modules of the package, each with its public names.
        importing: a context for each import.
    """
    module_of = {name: module for module, names in names_of.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with importing():
            value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return sorted(module_of), load, list_names
