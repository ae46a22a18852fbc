"""`conquiet page`: the web page."""

from __future__ import annotations

import getpass
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.task_apps import AppOptions

if TYPE_CHECKING:
    from conquiet.page import Site
    from conquiet.page.serving import Entrance

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where the page listens."""

    port: Annotated[int, typer.Option("--port", "-p", help="The port; 0 for a free one.")] = 8_321
    address: Annotated[str, typer.Option("--address", help="The address to listen on.")] = "127.0.0.1"
    certfile: Annotated[
        Path | None, typer.Option("--certfile", help="For TLS: the certificate.", metavar="FILE")
    ] = None
    keyfile: Annotated[Path | None, typer.Option("--keyfile", help="For TLS: its key.", metavar="FILE")] = (
        None
    )
    root_path: Annotated[
        str, typer.Option("--root-path", help="The path below which a proxy serves it.", metavar="PATH")
    ] = ""


def page(
    context: CommandContext,
    options: AppOptions,
    listen: ListenOptions,
    streams: Annotated[
        list[str] | None,
        typer.Argument(help="Plain streams to show beside the topics.", metavar="[STREAM]..."),
    ] = None,
    find_streams: Annotated[
        bool,
        typer.Option("--find-streams/--no-find-streams", help="Whether to look for plain streams with SCAN."),
    ] = True,
    samples: Annotated[
        bool,
        typer.Option(
            "--samples/--no-samples", help="Whether to read figures in the background, for rates and charts."
        ),
    ] = True,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nobody may change anything.")] = False,
    hash_password: Annotated[
        bool,
        typer.Option(
            "--hash-password", help="Read a password from stdin, print its hash for page_users, and end."
        ),
    ] = False,
) -> int:
    """Serve the page until Ctrl-C: queues, messages, dead letters, tasks, to look at and to act on.

    It prints a link with a token; settings name users, a proxy's header, or a token of yours: docs/page.md.
    """
    if hash_password:
        from conquiet.page.logins import hash_password as hashed

        password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
        if not password:
            raise UsageError("an empty password lets everybody in")
        context.output.line(hashed(password))
        return ExitCode.DONE
    from conquiet.page import PageSettings, Site
    from conquiet.page.serving import entrance_of, names_in

    settings = context.settings
    secret = settings.page_secret or secrets.token_urlsafe(32)
    entrance = entrance_of(settings, secret)
    page_settings = PageSettings(
        namespace=options.namespace if options.app is None else options.load(context).namespace,
        app=options.app,
        masked_fields=names_in(settings.page_mask),
        trace_url=settings.page_trace_url,
        prometheus_url=settings.page_prometheus_url,
        secret=secret,
        streams=tuple(streams or ()),
        finds_streams=find_streams,
        takes_samples=samples,
        is_read_only=read_only,
    )
    site = Site(lambda: settings.redis_url, page_settings, lambda: options.load(context))
    _serve(context, listen, site, entrance)
    return ExitCode.DONE


def _serve(context: CommandContext, listen: ListenOptions, site: Site, entrance: Entrance) -> None:
    from conquiet.page import build_page
    from conquiet.page.serving import Listening, serve

    def show(url: str) -> None:
        link = f"{url}/?token={entrance.token}" if entrance.token else f"{url}/"
        warning = ""
        if listen.address not in _LOOPBACK and listen.certfile is None:
            warning = "\nThe network can read what it sends: give --certfile, or use a proxy with TLS."
        context.output.show({"url": url, "link": link}, f"{link}\nCtrl-C ends it.{warning}")

    listening = Listening(
        address=listen.address,
        port=listen.port,
        certfile=listen.certfile,
        keyfile=listen.keyfile,
        root_path=listen.root_path.rstrip("/"),
    )
    try:
        serve(build_page(site, entrance.gate), listening, show)
    except OSError as error:
        raise UsageError(f"{listen.address}:{listen.port} cannot be listened on: {error.strerror}") from error
