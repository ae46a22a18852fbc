"""What `conquiet tasks`, `workers` and `queues` share: which app they are about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp

QueueName = Annotated[
    str | None, typer.Option("--queue", "-q", help="The task's queue; else every queue is asked.")
]
QueueArgument = Annotated[str, typer.Argument(help="The queue's name.", metavar="QUEUE")]
TaskId = Annotated[str, typer.Argument(help="The task's id.", metavar="ID")]
TaskIds = Annotated[list[str], typer.Argument(help="Ids of tasks.", metavar="ID...")]
WorkerNames = Annotated[
    list[str] | None, typer.Argument(help="Names of workers; without any, all.", metavar="[WORKER]...")
]


@dataclass(frozen=True, slots=True)
class AppOptions:
    """Which queues are meant."""

    namespace: Annotated[
        str, typer.Option("--namespace", help="What the app's keys begin with.", metavar="NAME")
    ] = "tasks"
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            help="package.module:app, or file.py:app: with its namespace, its tasks' options and its keys.",
            metavar="APP",
        ),
    ] = None

    @contextmanager
    def open(self, context: CommandContext) -> Iterator[TaskApp]:
        """The app on the server of the settings, for as long as the block lasts."""
        with self.load(context) as app:
            yield app

    def load(self, context: CommandContext) -> TaskApp:
        """The app on the server of the settings; the caller closes it."""
        from conquiet.tasks import TaskApp

        if self.app is None:
            return TaskApp(context.settings, namespace=self.namespace)
        from conquiet.tasks.worker.app_reference import load_app

        app = load_app(self.app)
        if context.options.url is not None or context.options.config is not None:
            app.use_server(context.settings.redis_url)
        return app
