"""Handlers that are given more than the message and the session: the step's context, and its resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_OF_EVERY_MESSAGE = ("msg", "session")
_CONTEXT = "context"


def extra_arguments(handler: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments of a handler beyond `msg` and `session`: `context`, and resources.

    A handler of two arguments may name them as it likes.
    """
    try:
        parameters = inspect.signature(handler).parameters
    except ValueError:
        return ()
    if not {*_OF_EVERY_MESSAGE} <= parameters.keys():
        return ()
    return tuple(
        name
        for name, parameter in parameters.items()
        if name not in _OF_EVERY_MESSAGE and parameter.default is parameter.empty
    )


def resource_names(handler: Callable[..., Any]) -> set[str]:
    """The resources that a handler takes, by the names of its arguments."""
    return {name for name in extra_arguments(handler) if name != _CONTEXT}


def bound_handler(handler: Callable[..., Any], context: Any) -> Callable[..., Any]:
    """The handler as `handler(msg, session)` in this step."""
    names = extra_arguments(handler)
    if not names:
        return handler
    given = {name: context if name == _CONTEXT else getattr(context.resources, name) for name in names}

    def handle(msg: Any, session: Any) -> Any:
        return handler(msg=msg, session=session, **given)

    return handle
