"""Checks of arguments; each error names the argument and the value."""

from __future__ import annotations

from collections.abc import Mapping


def check_name(argument: str, value: object) -> None:
    """Refuse what cannot be a Redis name: not a string, empty, or not UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {value!r}")
    if not value:
        raise ValueError(f"{argument} must not be empty, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument} has a lone surrogate, which UTF-8 cannot carry: {value!r}") from error


def check_positive_int(argument: str, value: object) -> None:
    """Refuse everything but an int above zero; `True` is refused, too."""
    _check_int(argument, value)
    if value <= 0:  # type: ignore[operator]  # an int since the line above
        raise ValueError(f"{argument} must be a positive int, got {value!r}")


def check_non_negative_int(argument: str, value: object) -> None:
    """Refuse everything but an int of zero or more; `True` is refused, too."""
    _check_int(argument, value)
    if value < 0:  # type: ignore[operator]  # an int since the line above
        raise ValueError(f"{argument} must be zero or a positive int, got {value!r}")


def check_positive_seconds(argument: str, value: object) -> None:
    """Refuse everything but a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{argument} must be a number of seconds, got {value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{argument} must be finite and above 0, got {value!r}")


def check_filter(which: Mapping[str, object], kinds: Mapping[str, type], of: str) -> None:
    """Refuse a filter that would not be applied and select everything: an unknown one, or of another type."""
    for name, value in which.items():
        if name not in kinds:
            raise TypeError(f"{name!r} is not a filter of {of}: those are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise TypeError(f"{name} must be of type {kinds[name].__name__}, got {value!r}")


def _check_int(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, got {value!r}")
