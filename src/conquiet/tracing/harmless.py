"""Calls into the application's tracer: what they raise is told, and decides about no message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger(__name__)

#: What has been told: a broken span processor fails with every span.
_told: set[tuple[str, type[Exception]]] = set()


def harmless(otherwise: _T, action: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a sampler, span processor or propagator by way of the API; `otherwise` if that raises."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 -- the application's; told below, once of each kind
        _tell(action, error)
        return otherwise


def _tell(action: Callable[..., object], error: Exception) -> None:
    kind = (getattr(action, "__qualname__", repr(type(action))), type(error))
    if kind in _told:
        return
    _told.add(kind)
    # The message that is being traced must not hang on the application's log either.
    with suppress(Exception):
        _log.warning("the tracer failed in %s; messages are handled without it", kind[0], exc_info=error)
