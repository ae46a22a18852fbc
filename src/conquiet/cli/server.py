"""`conquiet up`: the embedded server in the foreground."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from conquiet.cli.exits import ExitCode
from conquiet.cli.site import Site, command
from conquiet.cli.stopping import Stopping


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "up")(up)


def up(
    site: Site,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where the data stays; without it, it is gone at the end.", metavar="DIR"),
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
            binary=site.settings.server_bin,
        )
        with server:
            facts = {
                "url": server.url,
                "version": server.version,
                "dir": str(server.dir),
                "pids": list(server.pids),
            }
            site.output.show(facts, lambda: site.output.say(_welcome(server.url, server.version, directory)))
            while not stopping.wait(0.25):
                if not server.is_running:
                    site.output.say("" if site.output.is_json else "The server has ended by itself.")
                    return ExitCode.SERVER
    return ExitCode.DONE


def _welcome(url: str, version: str, directory: Path | None) -> str:
    kept = f"kept in {directory}" if directory else "gone at the end; --dir keeps it"
    return (
        f"A server {version} at {url}\nIts data: {kept}\n\n"
        f"    export CONQUIET_REDIS_URL={url}\n\nCtrl-C ends it."
    )
