"""`conquiet dev`: a project with everything that it needs, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.dev.plan import PLAN_FILE, STATE_DIRECTORY, DevPlan
from conquiet.cli.dev.processes import DevProcesses
from conquiet.cli.exits import ExitCode
from conquiet.cli.signals import Stopping

_LOOK_EVERY_S = 0.1


def dev(
    context: CommandContext,
    directory: Annotated[
        Path, typer.Argument(help=f"The project: where {PLAN_FILE} is.", metavar="[DIR]")
    ] = Path(),
) -> int:
    """Run a project on this machine until Ctrl-C: a private server, and what its conquiet-dev.toml names.

    Data stays in .conquiet/ of the project. No process of it is left, however this one ends.
    """
    from conquiet.embedded import EmbeddedServer

    plan = DevPlan.read(directory.resolve())
    state = plan.project / STATE_DIRECTORY
    state.mkdir(exist_ok=True)
    with Stopping(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as stopping:
        binary = context.settings.server_bin
        with EmbeddedServer(dir=state / "server", appendonly=True, binary=binary) as server:
            database_url = context.settings.database_url or _own_database(state)
            known = {
                "project": str(plan.project),
                "redis_url": server.url,
                "redis_host": "127.0.0.1",
                "redis_port": str(server.port),
                "database_url": database_url,
                "web_port": str(_web_port(plan.web_port)),
            }
            environment = _environment(plan, known)
            # What it prints is for people; with --json stdout has one document.
            is_json = context.output.is_json
            show = context.output.line if not is_json else lambda line: print(line, file=sys.stderr)
            with DevProcesses(plan.project, environment, show) as processes:
                return _run(context, plan, known, processes, stopping)


def _run(
    context: CommandContext,
    plan: DevPlan,
    known: Mapping[str, str],
    processes: DevProcesses,
    stopping: Stopping,
) -> int:
    for command in plan.setup:
        code = processes.run("setup", plan.words(command, known))
        if code:
            typer.echo(f"conquiet: the setup {command!r} has ended with exit code {code}", err=True)
            return ExitCode.FAILED
    for name, command in plan.processes.items():
        processes.start(name, plan.words(command, known))
    links = {name: plan.filled(link, known) for name, link in plan.links.items()}
    _show_start(context, known, links, processes)
    while not stopping.wait(_LOOK_EVERY_S):
        ended = processes.ended()
        if ended is not None:
            name, code = ended
            typer.echo(f"conquiet: {name} has ended with exit code {code}; the others end too", err=True)
            return ExitCode.FAILED
    if not context.output.is_json:
        context.output.line("stopping everything")
    return ExitCode.DONE


def _show_start(
    context: CommandContext, known: Mapping[str, str], links: Mapping[str, str], processes: DevProcesses
) -> None:
    document: dict[str, Any] = {
        "redis_url": known["redis_url"],
        "database_url": known["database_url"],
        "links": dict(links),
        "pids": processes.pids,
    }
    lines = [
        f"A server at {known['redis_url']}; its data stays in {STATE_DIRECTORY}/.",
        *(f"{name}: {link}" for name, link in links.items()),
        "In another terminal:",
        "",
        f"    export CONQUIET_REDIS_URL={known['redis_url']}",
        f"    export CONQUIET_DATABASE_URL={known['database_url']}",
        "",
        "Ctrl-C ends all of it.",
    ]
    context.output.show(document, "\n".join(lines))


def _environment(plan: DevPlan, known: Mapping[str, str]) -> dict[str, str]:
    """That of this process, with this Python's commands first, the server, and what the plan adds."""
    added = {name: plan.filled(text, known) for name, text in plan.environment.items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    servers = {"CONQUIET_REDIS_URL": known["redis_url"], "CONQUIET_DATABASE_URL": known["database_url"]}
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **servers, **added}


def _own_database(state: Path) -> str:
    """SQLite, as several processes use it: who reads does not keep others from writing."""
    path = state / "project.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    return f"sqlite:///{path}"


def _web_port(wanted: int) -> int:
    from conquiet.embedded.ports import choose_ports, is_free

    return wanted if is_free(wanted, has_bus=False) else choose_ports(1)[0]
