"""Handlers and types by name: "my_pkg.handlers:bill": so they travel through configs and command lines."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from conquiet.consume.handling import check_handler


def load_handler(reference: str, *, may_be_async: bool = False) -> Callable[..., Any]:
    """Import what "package.module:function" names.

    Raises:
        ValueError: it is not of that form.
        ImportError: there is no such module, or it has no such function.
        TypeError: it is no plain function or other callable.

    Examples:
        >>> load_handler("math:hypot")(3, 4)
        5.0
    """
    found = _imported("handler", "function", reference)
    check_handler(found, may_be_async=may_be_async)
    return found  # type: ignore[no-any-return]  # checked to be callable


def load_payload_type(reference: str) -> Any:
    """Import the type that "package.module:Class" names.

    Raises:
        ValueError: it is not of that form.
        ImportError: there is no such module, or it has no such class.
    """
    return _imported("payload", "Class", reference)


def _imported(argument: str, kind: str, reference: str) -> Any:
    module_name, separator, path = reference.partition(":") if isinstance(reference, str) else ("", "", "")
    if not (module_name and separator and path):
        raise ValueError(f'{argument} must be named as "package.module:{kind}", got {reference!r}')
    found: Any = import_module(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise ImportError(f"module {module_name!r} has no {path!r}, named by {reference!r}") from error
    return found


def reference_to(handler: Callable[..., Any]) -> str:
    """The name by which `load_handler` finds this function.

    Raises:
        ValueError: it cannot be found by a name: a lambda, a nested function, a bound object.

    Examples:
        >>> reference_to(load_handler("json:dumps"))
        'json:dumps'
    """
    reference = f"{getattr(handler, '__module__', None)}:{getattr(handler, '__qualname__', '<none>')}"
    try:
        is_found = load_handler(reference) is handler
    except (ImportError, ValueError):
        is_found = False
    if not is_found:
        raise ValueError(f"{handler!r} cannot be imported by name; make it a function of a module")
    return reference
