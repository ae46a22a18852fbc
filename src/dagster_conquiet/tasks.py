"""An op and an asset that have a conquiet task done by a worker, and wait for its result."""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_conquiet.described import KIND_TAGS, KINDS, code_references_of_caller
from dagster_conquiet.task_spec import TaskSpec

AssetKey = dg.AssetKey | str | list[str]
#: The arguments of a task as JSON values, or a function that makes them of the step's context.
Args = Mapping[str, Any] | Callable[[dg.AssetExecutionContext], Mapping[str, Any]]


def build_task_op(spec: TaskSpec, *, name: str | None = None, **options: Any) -> dg.OpDefinition:
    """An op that enqueues the task with its input `args`, a dict, and returns the result.

    However often the step or its run is retried, there is one task at a time: an attempt waits for the task
    of an earlier one, and enqueues another only after one that failed, was revoked or has expired. A step
    that is cancelled revokes its task. `options` are those of `@op`, such as `retry_policy`.

    Examples:
        >>> op = build_task_op(TaskSpec(task="shop.total"))
    """
    # Not above: `dg` looks at every public name, also where the extra of tasks is not installed.
    from dagster_conquiet.steps.tasks import run_task_in_step

    words = f"Has task {spec.task!r} done by its workers."
    defaults: dict[str, Any] = {"tags": KIND_TAGS, "description": words}

    @dg.op(
        name=name or f"task__{spec.name}",
        required_resource_keys={spec.resources.redis},
        ins={"args": dg.In(dict[str, Any])},
        out=dg.Out(dg.Any),
        **(defaults | options),
    )
    def run_task(context: dg.OpExecutionContext, args: dict[str, Any]) -> dg.Output[Any]:
        result, metadata = run_task_in_step(context, spec, args)
        return dg.Output(result, metadata=metadata)

    return run_task


def build_task_asset(
    spec: TaskSpec, *, key: AssetKey | None = None, args: Args | None = None, **options: Any
) -> dg.AssetsDefinition:
    """An asset that is materialised by the task; its value is the result, as `build_task_op`.

    Args:
        args: the task's arguments, or a function of the context, such as of its partition key.
        options: those of `@asset`, such as `deps`, `partitions_def` or `retry_policy`.

    Examples:
        >>> asset = build_task_asset(TaskSpec(task="shop.total"), key="total")
    """
    from dagster_conquiet.steps.tasks import run_task_in_step

    def materialise(context: dg.AssetExecutionContext) -> dg.Output[Any]:
        given = args(context) if callable(args) else args or {}
        result, metadata = run_task_in_step(context, spec, given)
        return dg.Output(result, metadata=metadata)

    words = f"The result of task {spec.task!r}, made by its workers."
    defaults: dict[str, Any] = {"kinds": KINDS, "description": words}
    shown = {"task": spec.task, "queue": spec.queue, **code_references_of_caller(args)}
    options["metadata"] = shown | (options.get("metadata") or {})
    asset: dg.AssetsDefinition = dg.asset(
        key=key or [spec.name], required_resource_keys={spec.resources.redis}, **(defaults | options)
    )(materialise)
    return asset
