"""`conquiet worker`: runs the tasks of an app."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.reload import run_with_reload
from conquiet.cli.servers import check_server
from conquiet.cli.signals import received_signals
from conquiet.cli.values import duration_option
from conquiet.cli.worker_metrics import served_metrics
from conquiet.logs import log_to_stderr
from conquiet.masking import mask

if TYPE_CHECKING:
    from conquiet.embedded import EmbeddedServer
    from conquiet.settings import Settings
    from conquiet.tasks import TaskApp, WorkerConfig

_log = logging.getLogger(__name__)

AppName = Annotated[str, typer.Argument(help="package.module:app, or file.py:app.", metavar="APP")]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of `WorkerConfig`, which is not imported to show help: what is not given is as it says."""

    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", help="a,b: the queues to read; else those of the app's tasks.", metavar="NAMES"
        ),
    ] = None
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Tasks at once; else one per processor.")
    ] = None
    pool: Annotated[
        str | None, typer.Option("--pool", help="process, thread or async; else process.", metavar="POOL")
    ] = None
    prefetch_multiplier: Annotated[
        int | None,
        typer.Option("--prefetch-multiplier", min=1, help="Tasks reserved for each one that runs; else 2."),
    ] = None
    heartbeat_ttl: Annotated[
        int | None,
        duration_option(
            "--heartbeat-ttl", "A worker that is silent for so long has lost its tasks; else 15s."
        ),
    ] = None
    max_tasks_per_child: Annotated[
        int | None,
        typer.Option("--max-tasks-per-child", min=1, help="Replace a process after so many tasks."),
    ] = None
    max_memory_mb: Annotated[
        int | None, typer.Option("--max-memory-mb", min=1, help="Replace a process that has so much memory.")
    ] = None
    name: Annotated[
        str | None, typer.Option("--name", help="The worker's name; else host and process.", metavar="NAME")
    ] = None

    def config(self, app: TaskApp) -> WorkerConfig:
        """As the worker takes it."""
        from conquiet.tasks import WorkerConfig

        given: dict[str, Any] = {name: value for name, value in asdict(self).items() if value is not None}
        heartbeat_ms = given.pop("heartbeat_ttl", None)
        if heartbeat_ms is not None:
            given["heartbeat_ttl_s"] = heartbeat_ms / 1000
        declared = {task.options.queue for task in app.tasks.values()}
        names = sorted(declared) if self.queues is None else [one.strip() for one in self.queues.split(",")]
        return WorkerConfig(**given | {"queues": tuple(names)})

    def as_arguments(self) -> list[str]:
        """As they are typed."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if "heartbeat_ttl" in given:
            given["heartbeat_ttl"] = f"{given['heartbeat_ttl']}ms"
        return [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def worker(
    context: CommandContext,
    app: AppName,
    options: WorkerOptions,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when the app's code changes.")
    ] = False,
    dev: Annotated[
        bool, typer.Option("--dev", help="For development: an embedded server, and --reload.")
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            help="debug (of conquiet alone), info, warning or error; else info, with --dev debug.",
            metavar="LEVEL",
        ),
    ] = None,
    beat: Annotated[
        bool, typer.Option("--beat", help="Also enqueue what the app's schedules have due.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, help="Serve the metrics of all its processes there; 0 for a free port."
        ),
    ] = None,
) -> int:
    """Run the tasks of an app until SIGTERM or Ctrl-C: what runs is finished then, the rest handed back.

    A second signal ends the tasks that run: each of them is a failed attempt.
    """
    settings = context.settings
    usual = "debug" if dev else "info"
    level = log_level or (usual if settings.log_level == "warning" else settings.log_level)
    if level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level must be debug, info, warning or error, got {level!r}")
    log_to_stderr(level, settings.log_format)
    is_for_development = dev or reload
    with ExitStack() as resources:
        metrics_url = None
        if metrics_port is not None and not is_for_development:
            metrics_url = resources.enter_context(served_metrics(metrics_port))
        received = resources.enter_context(received_signals())
        if is_for_development:
            arguments = [app, *options.as_arguments(), "--log-level", level, *context.options.as_arguments()]
            if metrics_port is not None:
                arguments += ["--metrics-port", str(metrics_port)]
            if beat:
                arguments.append("--beat")
            return _run_for_development(context, arguments, received, has_server=dev)
        return _run(context, app, options, level, received, metrics_url, has_beat=beat)


def _run(
    context: CommandContext,
    app: str,
    options: WorkerOptions,
    level: str,
    received: list[int],
    metrics_url: str | None,
    *,
    has_beat: bool,
) -> int:
    from conquiet.tasks import Beat, ProcessWorker, Worker
    from conquiet.tasks.worker import WorkerFailedError
    from conquiet.tasks.worker.app_reference import load_app
    from conquiet.tasks.worker.run import run_until_signals

    settings, loaded = context.settings, load_app(app)
    is_server_given = context.options.url is not None or context.options.config is not None
    url = settings.redis_url if is_server_given else None
    if url is not None:
        loaded.use_server(url)
    config = options.config(loaded)
    check_server(loaded.settings.redis_url)
    runner: ProcessWorker | Worker
    if config.pool == "process":
        runner = ProcessWorker(app, config, url=url, log_level=level, log_format=settings.log_format)
    else:
        runner = Worker(loaded, config)
    _show_banner(context, app, loaded, config, metrics_url)
    _warn_of_queues(app, loaded, config)
    try:
        with Beat(loaded) if has_beat else nullcontext() as beat:
            run_until_signals(runner, received, lambda: beat is not None and beat.has_failed)
            has_failed = beat is not None and beat.has_failed
    except WorkerFailedError as error:
        typer.echo(f"conquiet: {error}", err=True)
        return ExitCode.FAILED
    return ExitCode.FAILED if has_failed else ExitCode.DONE


def _show_banner(
    context: CommandContext, reference: str, app: TaskApp, config: WorkerConfig, metrics_url: str | None
) -> None:
    tasks = sorted(name for name in app.tasks if not name.startswith("conquiet."))
    url = mask(app.settings.redis_url)
    document = {
        "worker": config.name,
        "app": reference,
        "url": url,
        "pool": config.pool,
        "concurrency": config.concurrency,
        "queues": list(config.queues),
        "tasks": tasks,
        "metrics": metrics_url,
    }
    lines = [
        f"worker   {config.name}",
        f"server   {url}",
        f"pool     {config.pool}, {config.concurrency} at once",
        f"queues   {', '.join(config.queues)}",
        f"tasks    {tasks[0] if tasks else f'none: {reference} declares no task'}",
        *(f"         {name}" for name in tasks[1:]),
        *([f"metrics  {metrics_url}"] if metrics_url else []),
        "Ctrl-C stops it: tasks that run are finished.",
    ]
    context.output.show(document, "\n".join(lines))


def _warn_of_queues(reference: str, app: TaskApp, config: WorkerConfig) -> None:
    declared = {task.options.queue for name, task in app.tasks.items() if not name.startswith("conquiet.")}
    if declared and declared.isdisjoint(config.queues):
        text = "no task of %s has its queue among those that are read, %s: its tasks are enqueued into %s"
        _log.warning(text, reference, ", ".join(config.queues), ", ".join(sorted(declared)))


def _run_for_development(
    context: CommandContext, arguments: list[str], received: list[int], *, has_server: bool
) -> int:
    """The worker in a process that starts again when its code changes; the server stays."""
    from conquiet.tasks.worker.app_reference import source_directory

    directory = source_directory(arguments[0])
    command = [sys.executable, "-m", "conquiet.cli", "worker", *arguments]
    with ExitStack() as resources:
        if has_server:
            server = resources.enter_context(_development_server(context.settings))
            command += ["--url", server.url]
            if not context.output.is_json:
                context.output.line(_about_server(server, context.settings))
        return run_with_reload(command, directory, received)


def _development_server(settings: Settings) -> EmbeddedServer:
    """Where the app looks for one, if that is on this machine and free; else on any free port."""
    from conquiet.embedded import EmbeddedServer
    from conquiet.embedded.ports import is_free

    wanted = urlsplit(settings.redis_url)
    is_here = wanted.scheme == "redis" and wanted.hostname in ("127.0.0.1", "localhost")
    port = (wanted.port or 6379) if is_here else None
    return EmbeddedServer(
        port=port if port and is_free(port, has_bus=False) else None, binary=settings.server_bin
    )


def _about_server(server: EmbeddedServer, settings: Settings) -> str:
    text = f"A server for development at {server.url} (it ends with this command, with its data)"
    if urlsplit(server.url).port != (urlsplit(settings.redis_url).port or 6379):
        text += f"\nIn the terminal that enqueues:\n\n    export CONQUIET_REDIS_URL={server.url}\n"
    return text
