"""Site: where a command works, made of the options that every command has."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.output import Output, forget_reader
from conquiet.logs import JsonFormatter, MaskedFormatter
from conquiet.settings import Settings
from conquiet.tracing import enable

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.mq import Topic
    from conquiet.queue import Client

_PANEL = "Options of every command"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The server: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://. "
        "Else redis_url of the config file, else CONQUIET_REDIS_URL.",
        metavar="URL",
        rich_help_panel=_PANEL,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The config file, TOML or YAML.", metavar="FILE", rich_help_panel=_PANEL),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=_PANEL)
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log at level info to stderr.", rich_help_panel=_PANEL)
]
LogFormatOption = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        help="How to log: text, or json for one object per line.",
        metavar="FORMAT",
        rich_help_panel=_PANEL,
    ),
]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", "-g", help="The consumer group; else the setting `group`.", metavar="GROUP"),
]


class Site:
    """The server, the settings and the output of one command."""

    def __init__(self, settings: Settings, output: Output) -> None:
        self.settings = settings
        self.output = output

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client for as long as the block lasts."""
        from conquiet.queue import open_client
        from conquiet.queue.connection import visible_errors

        # A cluster client connects at once; its failure is one of Redis, too.
        with visible_errors("connect", stream="(server)", group=None):
            client = open_client(self.settings.redis_url)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def topic(self, name: str) -> Iterator[Topic]:
        """A topic or plain stream by its name."""
        from conquiet.mq import Topics

        with self.client() as client:
            yield Topics(client).open(name)

    @contextmanager
    def engine(self, url: str | None) -> Iterator[Engine | None]:
        """An engine on the database of the option, else of the settings, else none."""
        from conquiet.db.engine import open_engine

        wanted = url or self.settings.database_url
        if wanted is None:
            yield None
            return
        engine = open_engine(wanted)
        try:
            yield engine
        finally:
            engine.dispose()

    def group(self, given: str | None) -> str:
        """The group of the option, else of the settings.

        Raises:
            UsageError: neither names one.
        """
        name = given or self.settings.group
        if name is None:
            raise UsageError("Say which consumer group: --group, or the setting `group`.")
        return name


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a command: its first parameter, a `Site`, becomes the options of every command."""

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        hints = get_type_hints(function, include_extras=True)
        first, *others = inspect.signature(function).parameters.values()
        common = {
            "url": UrlOption,
            "config": ConfigOption,
            "json": JsonOption,
            "verbose": VerboseOption,
            "log_format": LogFormatOption,
        }
        defaults = {"url": None, "config": None, "json": False, "verbose": False, "log_format": None}

        @functools.wraps(function)
        def run(
            *,
            url: str | None,
            config: Path | None,
            json: bool,
            verbose: bool,
            log_format: str | None,
            **own: Any,
        ) -> int | None:
            level = "info" if verbose else None
            settings = Settings.load(config=config, redis_url=url, log_level=level, log_format=log_format)
            _log_to_stderr(settings)
            if settings.is_tracing:
                enable(payload_field=settings.tracing_field)
            try:
                return function(Site(settings, Output(is_json=json)), **own)
            except BrokenPipeError:
                forget_reader()
                return ExitCode.DONE

        parameters = [
            other.replace(annotation=hints[other.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for other in others
        ]
        parameters += [
            inspect.Parameter(
                option, inspect.Parameter.KEYWORD_ONLY, default=defaults[option], annotation=kind
            )
            for option, kind in common.items()
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer looks here
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__, first
        app.command(name)(run)
        return function

    return register


def _log_to_stderr(settings: Settings) -> None:
    text = MaskedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
