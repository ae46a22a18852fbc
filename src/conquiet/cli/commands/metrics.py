"""`conquiet metrics serve`: figures for Prometheus, read from Redis at each scrape."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.signals import Stopping
from conquiet.cli.values import Names


def serve_metrics(
    context: CommandContext,
    names: Names = None,
    port: Annotated[int, typer.Option("--port", "-p", help="The port; 0 for a free one.")] = 9_808,
    address: Annotated[str, typer.Option("--address", help="The address to listen on.")] = "127.0.0.1",
    namespace: Annotated[
        str, typer.Option("--namespace", help="What the keys of task queues begin with.", metavar="NAME")
    ] = "tasks",
    tasks: Annotated[
        bool,
        typer.Option("--tasks/--no-tasks", help="Whether to read task queues, if conquiet[tasks] is here."),
    ] = True,
) -> int:
    """Serve lag, pending, ages, lengths, dead letters and task queues at /metrics until Ctrl-C."""
    from prometheus_client import CollectorRegistry, start_http_server

    from conquiet.mq import MqCollector

    with Stopping() as stopping, context.client() as client:
        registry = CollectorRegistry(auto_describe=True)
        registry.register(MqCollector(client, names or None))
        if tasks and find_spec("pydantic") is not None:
            from conquiet.tasks import TaskCollector
            from conquiet.tasks.beat import BeatCollector

            registry.register(TaskCollector(client, namespace))
            registry.register(BeatCollector(client, namespace))
        try:
            server, thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise UsageError(f"{address}:{port} cannot be listened on: {error.strerror}") from error
        url = f"http://{address}:{server.server_port}/metrics"
        try:
            context.output.show({"url": url}, f"{url}\nCtrl-C ends it.")
            while not stopping.wait(60):
                pass
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    return ExitCode.DONE
