"""`conquiet up`: the embedded server in the foreground."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode
from conquiet.cli.signals import Stopping


def up(
    context: CommandContext,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Where the data is kept; without it, it is deleted at the end.", metavar="DIR"
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="The port; without it, a free one.")] = None,
    appendonly: Annotated[
        bool,
        typer.Option("--appendonly", help="Write the append-only file, so that a restart loses nothing."),
    ] = False,
    appendfsync: Annotated[
        str, typer.Option("--appendfsync", help="When it reaches the disk: always, everysec or no.")
    ] = "everysec",
    cluster: Annotated[int, typer.Option("--cluster", help="Primaries of a cluster; 0 for one server.")] = 0,
) -> int:
    """Run a private Valkey or Redis server until Ctrl-C; nothing of it is left running then."""
    from conquiet.embedded import EmbeddedServer

    with Stopping(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as stopping:
        server = EmbeddedServer(
            dir=directory,
            port=port,
            appendonly=appendonly,
            appendfsync=appendfsync,
            cluster=cluster,
            binary=context.settings.server_bin,
        )
        with server:
            url, version = server.url, server.version
            kept = f"kept in {directory}" if directory else "deleted at the end; --dir keeps it"
            context.output.show(
                {"url": url, "version": version, "dir": str(server.dir), "pids": list(server.pids)},
                f"A server {version} at {url}\nIts data: {kept}\n\n"
                f"    export CONQUIET_REDIS_URL={url}\n\nCtrl-C ends it.",
            )
            while not stopping.wait(0.25):
                if not server.is_running:
                    context.output.line("" if context.output.is_json else "The server has ended by itself.")
                    return ExitCode.SERVER
    return ExitCode.DONE
