"""`conquiet beat`: enqueues what the schedules of an app have due."""

from __future__ import annotations

from typing import Annotated

import typer

from conquiet.cli.commands.worker import AppName
from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode
from conquiet.cli.signals import Stopping
from conquiet.cli.values import duration_option
from conquiet.cli.worker_metrics import served_metrics
from conquiet.logs import log_to_stderr
from conquiet.masking import mask

_NO_SCHEDULE = 'no schedule: app.schedule("nightly", task, cron="0 2 * * *") in the app\'s code declares one'


def beat(
    context: CommandContext,
    app: AppName,
    name: Annotated[
        str | None, typer.Option("--name", help="The beat's name; else host and process.", metavar="NAME")
    ] = None,
    lease_ttl: Annotated[
        int | None,
        duration_option("--lease-ttl", "A leader that is silent for so long is replaced; else 10s."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, help="Serve its metrics there; 0 for a free port.")
    ] = None,
) -> int:
    """Enqueue what the schedules of an app have due, until SIGTERM or Ctrl-C.

    Any number may run: one leads, and another one takes over when it ends. The schedules that the app's code
    declares are written first.
    """
    from contextlib import ExitStack

    with ExitStack() as resources:
        url = None
        if metrics_port is not None:
            url = resources.enter_context(served_metrics(metrics_port))
        from conquiet.tasks.beat import Beat, BeatConfig
        from conquiet.tasks.worker.app_reference import load_app

        if context.settings.log_level == "warning":
            log_to_stderr("info", context.settings.log_format)
        loaded = resources.enter_context(load_app(app))
        if context.options.url is not None or context.options.config is not None:
            loaded.use_server(context.settings.redis_url)
        given = {"name": name, "lease_ttl_s": None if lease_ttl is None else lease_ttl / 1000}
        config = BeatConfig(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
        document = {
            "beat": config.name,
            "app": app,
            "url": mask(loaded.settings.redis_url),
            "declared": sorted(loaded.schedules.declared),
            "metrics": url,
        }
        lines = [
            f"beat     {config.name}",
            f"server   {document['url']}",
            f"declared {', '.join(sorted(loaded.schedules.declared)) or _NO_SCHEDULE}",
            *([f"metrics  {url}"] if url else []),
            "Ctrl-C stops it.",
        ]
        stopping = resources.enter_context(Stopping())
        context.output.show(document, "\n".join(lines))
        with Beat(loaded, config) as running:
            while running.is_running and not stopping.wait(0.2):
                pass
            has_failed = running.has_failed
    return ExitCode.FAILED if has_failed else ExitCode.DONE
