"""Handlers that are given more than the message and the session: the step's context, and its resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dagster as dg

from conquiet.consume.batch_handler import BatchHandler

_CONTEXT = "context"


def extra_arguments(handler: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments of a handler beyond `msg` and `session`: `context`, and resources.

    One of batches has `messages` instead of `msg`.

    A handler of two arguments may name them as it likes.
    """
    try:
        parameters = inspect.signature(handler).parameters
    except ValueError:
        return ()
    own = {_given(handler), "session"}
    if not own <= parameters.keys():
        return ()
    return tuple(
        name
        for name, parameter in parameters.items()
        if name not in own
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )


def resource_names(handler: Callable[..., Any]) -> set[str]:
    """The resources that a handler takes, by the names of its arguments."""
    return {name for name in extra_arguments(handler) if name != _CONTEXT}


def bound_handler(handler: Callable[..., Any], context: Any) -> Callable[..., Any]:
    """The handler as `handler(msg, session)`, or `handler(messages, session)`, in this step."""
    names = extra_arguments(handler)
    if not names:
        return handler
    given = {name: context if name == _CONTEXT else _resource(context, name, handler) for name in names}

    function = handler.handle_all if isinstance(handler, BatchHandler) else handler
    name_of_messages = _given(handler)

    def handle(one_or_many: Any, session: Any) -> Any:
        return function(**{name_of_messages: one_or_many}, session=session, **given)

    return BatchHandler(handle) if isinstance(handler, BatchHandler) else handle


def _resource(context: Any, name: str, handler: Callable[..., Any]) -> Any:
    try:
        return getattr(context.resources, name)
    except dg.DagsterError as error:
        function = getattr(handler, "__name__", repr(handler))
        raise ValueError(
            f"handler {function!r} takes the resource {name!r}, which its step has not: name it in "
            "required_resource_keys of the spec, in YAML in resources"
        ) from error


def _given(handler: Callable[..., Any]) -> str:
    return "messages" if isinstance(handler, BatchHandler) else "msg"
