"""`@task.conquiet_task`: what the decorated function returns are the arguments of a conquiet task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_provider_conquiet.airflow_names import determine_kwargs
from airflow_provider_conquiet.operators.task import TaskOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskDecoratedOperator(DecoratedOperator, TaskOperator):
    """A TaskOperator whose arguments come from the decorated function.

    A retry calls the function again; the task that an earlier try has enqueued keeps the arguments it has.

    Examples:
        >>> with DAG("price_orders", schedule="@daily", catchup=False):
        ...
        ...     @task.conquiet_task(task="shop.price", retries=2)
        ...     def price(run_id):
        ...         return {"order_id": run_id, "cents": 100}
        ...
        ...     priced = price()
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in TaskOperator.template_fields if name != "args"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {**DecoratedOperator.template_fields_renderers}
    custom_operator_name = "@task.conquiet_task"

    def __init__(self, *, python_callable: Callable[..., Any], task: str, **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, task=task, **kwargs)

    def execute(self, context: Context) -> Any:
        """Call the function, enqueue the task with what it returns, and wait for it."""
        of_context = determine_kwargs(self.python_callable, self.op_args, dict(context))
        named = {**of_context, **self.op_kwargs}
        return self.run_task(context, self.python_callable(*self.op_args, **named))


#: Makes a task that enqueues a conquiet task with what the decorated function returns, and waits for it.
conquiet_task = partial(task_decorator_factory, decorated_operator_class=TaskDecoratedOperator)
