"""`conquiet metrics serve`: figures for Prometheus, asked of Redis at each scrape."""

from __future__ import annotations

from typing import Annotated

import typer

from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.site import Site, command
from conquiet.cli.stopping import Stopping


def register(app: typer.Typer) -> None:
    """Add the command."""
    metrics = typer.Typer(help="Figures for Prometheus.", no_args_is_help=True)
    app.add_typer(metrics, name="metrics")
    command(metrics, "serve")(serve)
    # A group with one command would otherwise be taken for the command itself.
    metrics.callback()(_group)


def _group() -> None:
    """Figures for Prometheus."""


def serve(
    site: Site,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Topics or plain streams; without any, every topic.", metavar="[NAME]..."),
    ] = None,
    port: Annotated[int, typer.Option("--port", "-p", help="The port; 0 for a free one.")] = 9_808,
    address: Annotated[str, typer.Option("--address", help="The address to listen on.")] = "127.0.0.1",
) -> int:
    """Serve lag, pending, ages, lengths and dead letters at /metrics until Ctrl-C."""
    from prometheus_client import CollectorRegistry, start_http_server

    from conquiet.mq import MqCollector

    with Stopping() as stopping, site.client() as client:
        registry = CollectorRegistry(auto_describe=True)
        registry.register(MqCollector(client, names or None))
        try:
            server, thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise UsageError(f"{address}:{port} cannot be listened on: {error.strerror}") from error
        url = f"http://{address}:{server.server_port}/metrics"
        try:
            site.output.show({"url": url}, lambda: site.output.say(f"{url}\nCtrl-C ends it."))
            while not stopping.wait(60):
                pass
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    return ExitCode.DONE
