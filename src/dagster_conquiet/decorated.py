"""@drain_asset and @drain_op: a handler below a decorator is an asset, or an op, that drains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_conquiet.assets import build_drain_asset, build_topic_drain_asset
from dagster_conquiet.ops import build_drain_op
from dagster_conquiet.specs import AnySpec, DrainSpec, TopicDrainSpec

Handler = Callable[..., Any]


def drain_asset(spec: AnySpec, **options: Any) -> Callable[[Handler], dg.AssetsDefinition]:
    """The function below handles the messages of an asset's drain, as `(msg, session)`.

    Below `@batch_handler` it handles lists of them, as `(messages, session)`.

    It is also given the step's `context`, and resources, if it has arguments of their names.

    The asset has the name and the docstring of the function unless `options` say otherwise; they are those of
    `build_drain_asset` or `build_topic_drain_asset`. `spec_of(asset)` is the spec with its handler.

    Examples:
        >>> @drain_asset(DrainSpec(stream="orders", group="billing"))
        ... def bills(msg, session):
        ...     session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), msg.payload)
    """

    def decorate(handler: Handler) -> dg.AssetsDefinition:
        whole, described = _of(spec, handler), {"description": handler.__doc__} | options
        if "key" not in described and "name" not in described:
            prefix = described.pop("key_prefix", [])
            described["key"] = [*([prefix] if isinstance(prefix, str) else prefix), handler.__name__]
        if isinstance(whole, TopicDrainSpec):
            return build_topic_drain_asset(whole, **described)
        return build_drain_asset(whole, **described)

    return decorate


def drain_op(spec: DrainSpec, **options: Any) -> Callable[[Handler], dg.OpDefinition]:
    """The same as an op, with the options of `build_drain_op`.

    Examples:
        >>> @drain_op(DrainSpec(stream="orders", group="billing"))
        ... def bill_orders(msg, session):
        ...     session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), msg.payload)
    """

    def decorate(handler: Handler) -> dg.OpDefinition:
        described = {"name": handler.__name__, "description": handler.__doc__} | options
        return build_drain_op(_of(spec, handler), **described)

    return decorate


def _of(spec: Any, handler: Handler) -> Any:
    if spec.handler is not None:
        raise ValueError(f"the spec of {spec.source!r} has a handler; a decorated one needs a spec without")
    return replace(spec, handler=handler)


def spec_of(definition: dg.AssetsDefinition | dg.OpDefinition) -> Any:
    """The spec of a drain's asset or op, with its handler: for the recovery's job, a sensor, or a test.

    Examples:
        >>> spec_of(build_drain_asset(orders, key="bills")).stream
        'orders'
    """
    op = definition.op if isinstance(definition, dg.AssetsDefinition) else definition
    spec = getattr(getattr(op.compute_fn, "decorated_fn", None), "spec", None)
    if spec is None:
        raise ValueError(f"{op.name!r} does not drain a stream or topic")
    return spec
