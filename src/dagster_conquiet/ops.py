"""Ops: enqueue the output of an earlier op, drain a stream."""

# No `from __future__ import annotations` here: Dagster reads the config's type, which is created per spec.

from typing import Any

import dagster as dg

from conquiet.consume import DrainReport
from conquiet.queue import StreamWriter
from dagster_conquiet.config import with_defaults
from dagster_conquiet.described import KIND_TAGS, description_of
from dagster_conquiet.specs import DrainSpec
from dagster_conquiet.steps.attempts import attempt_of
from dagster_conquiet.steps.drain import drain_in_step
from dagster_conquiet.steps.metadata import id_range, page_link


def build_enqueue_op(spec: DrainSpec, *, name: str | None = None, **options: Any) -> dg.OpDefinition:
    """An op that adds its input `payloads`, a list of dicts, to the stream and returns how many.

    Each payload is added once, however often the step or its run is retried. `options` are those of `@op`.

    Examples:
        >>> op = build_enqueue_op(orders)
    """

    defaults = {"description": f"Adds messages to {spec.stream!r}.", "tags": KIND_TAGS}

    @dg.op(
        name=name or f"enqueue__{spec.name}",
        required_resource_keys={spec.resources.redis},
        ins={"payloads": dg.In(list[dict[str, Any]])},
        out=dg.Out(int),
        **(defaults | options),
    )
    def enqueue(context: dg.OpExecutionContext, payloads: list[dict[str, Any]]) -> dg.Output[int]:
        attempt, redis_streams = attempt_of(context), spec.resources.redis_of(context)
        with attempt.span(), redis_streams.connect() as client:
            ids = StreamWriter(client, spec.stream).enqueue_once(payloads, dedupe_id=attempt.work_id)
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        link = page_link(spec.stream)
        metadata = {"enqueued": dg.MetadataValue.int(len(ids)), **id_range(first, last), **link}
        return dg.Output(len(ids), metadata=metadata)

    return enqueue


def build_drain_op(spec: DrainSpec, *, name: str | None = None, **options: Any) -> dg.OpDefinition:
    """An op that drains the stream and returns the `DrainReport` as a dict.

    Its config is a `DrainConfig` with the spec's values as defaults. `options` are those of `@op`, such as
    `retry_policy`; drains of one stream and group share a `pool`.

    Examples:
        >>> op = build_drain_op(orders)
    """
    config_type = with_defaults(spec.config)
    defaults = {"pool": spec.pool, "description": description_of(spec), "tags": KIND_TAGS}

    def drain_stream(
        context: dg.OpExecutionContext,
        config: config_type,  # type: ignore[valid-type]  # with the spec's own defaults
    ) -> dg.Output[dict[str, Any]]:
        report, metadata = drain_in_step(context, spec, config)
        return dg.Output(report_without_errors(report), metadata=metadata)

    drain_stream.spec = spec  # type: ignore[attr-defined]  # for spec_of
    decorate = dg.op(
        name=name or f"drain__{spec.name}",
        required_resource_keys={*spec.resource_keys, *options.pop("required_resource_keys", ())},
        out=dg.Out(dict[str, Any]),
        **(defaults | options),
    )
    return decorate(drain_stream)


def report_without_errors(report: DrainReport) -> dict[str, Any]:
    """The report's counts and ids; the text of a handler's error may quote its message."""
    return report.to_dict() | {"failures": [failure.id for failure in report.failures[:100]]}
