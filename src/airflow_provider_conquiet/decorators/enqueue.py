"""`@task.enqueue`: what the decorated function returns or yields is enqueued."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_conquiet.operators.enqueue import EnqueueOperator, payload_list
from airflow_provider_conquiet.refusals import refused_at_once
from airflow_provider_conquiet.reports import Report

if TYPE_CHECKING:
    from airflow.sdk import Context


class EnqueueDecoratedOperator(DecoratedOperator, EnqueueOperator):
    """An EnqueueOperator whose payloads come from the decorated function.

    A retry calls the function again; a place of the list that was enqueued before is not enqueued again.
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *EnqueueOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **EnqueueOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.enqueue"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def execute(self, context: Context) -> Report:
        """Call the function and enqueue what it gives; its own errors are retried as any task's."""
        named = {**self.determine_kwargs(dict(context)), **self.op_kwargs}
        result = self.python_callable(*self.op_args, **named)
        if isinstance(result, Iterator):
            # Run the function's body here: its errors are no mistakes in the task's arguments.
            result = list(result)
        with refused_at_once():
            return self.enqueue(context, [] if result is None else payload_list(result))


def enqueue_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task that enqueues what the decorated function returns or yields."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=EnqueueDecoratedOperator,
        **kwargs,
    )
