"""Traces of messages with OpenTelemetry: off unless `enable()` or `CONQUIET_TRACING=1` says otherwise."""

from conquiet.tracing.switch import active_traces, disable, enable, headers, is_enabled, working
from conquiet.tracing.where import Where

__all__ = ["Where", "active_traces", "disable", "enable", "headers", "is_enabled", "working"]
