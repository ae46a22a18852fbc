"""Whether messages are traced, and by what."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conquiet.errors import SettingsError
from conquiet.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from conquiet.tracing.traces import Traces

_log = logging.getLogger(__name__)


class _Switch:
    """Undecided until the first message: then the environment decides."""

    def __init__(self) -> None:
        self.traces: Traces | None = None
        self.is_decided = False


_switch = _Switch()


def enable(tracer_provider: TracerProvider | None = None, *, payload_field: str | None = None) -> None:
    """Trace what this process sends and handles from now on.

    Args:
        tracer_provider: where spans go; without one, the provider that the application has set, if any.
        payload_field: a member of the payload that carries the context on plain streams, which have no
            headers. Handlers see it too.

    Raises:
        SettingsError: OpenTelemetry is not installed.

    Examples:
        >>> from opentelemetry.sdk.trace import TracerProvider
        >>> from conquiet import tracing
        >>> tracing.enable(TracerProvider(), payload_field="trace")
        >>> tracing.is_enabled()
        True
        >>> tracing.disable()
    """
    try:
        from conquiet.tracing.traces import Traces
    except ImportError as error:
        raise SettingsError(
            "tracing needs OpenTelemetry: pip install 'conquiet[otel]'", key="tracing"
        ) from error
    _switch.traces = Traces(tracer_provider, payload_field=payload_field)
    _switch.is_decided = True


def disable() -> None:
    """Trace nothing from now on, even if the environment enables it.

    Examples:
        >>> from conquiet import tracing
        >>> tracing.disable()
        >>> tracing.is_enabled()
        False
    """
    _switch.traces, _switch.is_decided = None, True


def is_enabled() -> bool:
    """Whether this process traces.

    Examples:
        >>> from conquiet import tracing
        >>> tracing.is_enabled()
        False
    """
    return active_traces() is not None


def active_traces() -> Traces | None:
    """What makes spans, `None` while tracing is off."""
    if not _switch.is_decided:
        _switch.is_decided = True
        try:
            settings = Settings.from_environment()
            if settings.is_tracing:
                enable(payload_field=settings.tracing_field)
        except SettingsError as error:
            # The environment is not the application's: work without traces instead of failing.
            _log.warning("%s; nothing is traced", error)
    return _switch.traces


def headers() -> dict[str, str]:
    """The current context as W3C headers, to be passed on explicitly; empty while tracing is off.

    Examples:
        >>> from conquiet import tracing
        >>> tracing.headers()
        {}
    """
    traces = active_traces()
    return {} if traces is None else traces.current_headers()


@contextmanager
def working(
    name: str, attributes: Mapping[str, Any] | None = None, *, carrier: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A span around the work of one task, unless there is a current one; nothing while tracing is off.

    Args:
        carrier: the headers of the process that started the work.
    """
    traces = active_traces()
    if traces is None:
        yield
        return
    with traces.working(name, attributes or {}, carrier or {}):
        yield
