"""`@task.drain`: the decorated function is the handler of a drain."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_provider_conquiet.drains import TaskDrain
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.task_try import TaskTry
from conquiet.consume import Handler
from conquiet.consume.batch_handler import BatchHandler

if TYPE_CHECKING:
    from airflow.sdk import Context


class DrainDecoratedOperator(DecoratedOperator, DrainOperator):
    """A DrainOperator whose handler is the decorated function.

    Its first two parameters are the message, or with `batch=True` a list of messages, and the session; any
    others get what the task was called with, or the context's values of their names. With a topic, one that
    is called `partition` says which partition is drained, so that the task can be expanded over them.

    Examples:
        >>> with DAG("bill_orders", schedule="*/5 * * * *", catchup=False):
        ...
        ...     @task.drain(stream="orders", group="billing", max_messages=5_000, inbox=True, retries=2)
        ...     def bill_orders(msg, session):
        ...         session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), msg.payload)
        ...
        ...     billed = bill_orders()
    """

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *DrainOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {**DecoratedOperator.template_fields_renderers}
    custom_operator_name = "@task.drain"

    def __init__(
        self,
        *,
        python_callable: Handler,
        batch: bool = False,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.function = python_callable
        signature = inspect.signature(python_callable)
        parameters = list(signature.parameters.values())
        if len(parameters) < 2:
            raise TypeError(
                "a handler is called as handler(msg, session), one of batches as handler(messages, session): "
                f"{python_callable!r} takes {signature}"
            )

        @wraps(python_callable)
        def handler(*args: Any, **named: Any) -> Any:
            return python_callable(*args, **named)

        # Airflow binds the arguments of the task when the DAG is read; the first two come with each message.
        handler.__signature__ = signature.replace(parameters=parameters[2:])  # type: ignore[attr-defined]
        super().__init__(
            python_callable=handler,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={"handler": python_callable},
            batch=batch or isinstance(python_callable, BatchHandler),
            **kwargs,
        )

    def loaded_handler(self, context: Context) -> Handler:
        """The decorated function, with all but the message and the session filled in."""
        names = inspect.signature(self.python_callable).parameters
        given = self._given()
        from_context = {name: context[name] for name in names if name in context}  # type: ignore[literal-required]
        return self.marked(partial(self.function, **{**from_context, **given}))

    def task_drain(self, hook: RedisStreamsHook, task_try: TaskTry) -> TaskDrain:
        """As `DrainOperator.task_drain`, of the partition that the function was called with, if it was."""
        if self.topic is not None and self.partition is None:
            self.partition = self._given().get("partition")
        return super().task_drain(hook, task_try)

    def _given(self) -> dict[str, Any]:
        """What the task was called with, by the names of the function's parameters."""
        names = inspect.signature(self.python_callable).parameters
        return {**dict(zip(names, self.op_args, strict=False)), **self.op_kwargs}


#: Makes a drain of a stream, or of a topic's partition, whose handler is the decorated function.
drain_task = partial(task_decorator_factory, decorated_operator_class=DrainDecoratedOperator)
