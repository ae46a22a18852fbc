"""`@task.enqueue`: what the decorated function returns or yields is enqueued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_provider_conquiet.airflow_names import determine_kwargs
from airflow_provider_conquiet.arguments import failing_at_once
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator, payload_list
from airflow_provider_conquiet.reports import Report

if TYPE_CHECKING:
    from airflow.sdk import Context


class EnqueueDecoratedOperator(DecoratedOperator, EnqueueOperator):
    """An EnqueueOperator whose payloads come from the decorated function.

    A retry calls the function again; what was enqueued before is not enqueued again, in whatever order.

    Examples:
        >>> with DAG("import_orders", schedule="@hourly", catchup=False):
        ...
        ...     @task.enqueue(stream="orders", retries=2)
        ...     def find_orders(run_id):
        ...         for number in range(100):
        ...             yield {"order_id": f"{run_id}/{number}"}
        ...
        ...     found = find_orders()
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *EnqueueOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **EnqueueOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.enqueue"

    def execute(self, context: Context) -> Report:
        """Call the function and enqueue what it gives; its own errors are retried as any task's."""
        of_context = determine_kwargs(self.python_callable, self.op_args, dict(context))
        named = {**of_context, **self.op_kwargs}
        result = self.python_callable(*self.op_args, **named)
        if isinstance(result, Iterator):
            # The function's body runs here: its errors are not mistakes in the task's arguments.
            result = list(result)
        with failing_at_once():
            return self.enqueue(context, [] if result is None else payload_list(result))


#: Makes a task that enqueues what the decorated function returns or yields.
enqueue_task = partial(task_decorator_factory, decorated_operator_class=EnqueueDecoratedOperator)
