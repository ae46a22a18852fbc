"""CommandContext: the settings, server and output of one command, from the options of every command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.output import Output, forget_reader
from conquiet.logs import log_to_stderr
from conquiet.settings import Settings
from conquiet.tracing import enable

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.mq import Topic
    from conquiet.queue import Client

_T = TypeVar("_T")

#: A command: the context, then its own options; returns its exit code, or `None` for 0.
Command = Callable[..., int | None]


def _of_every_command(*names: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel="Options of every command")


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The options of every command."""

    url: Annotated[
        str | None,
        _of_every_command(
            "--url",
            text="The server: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://. "
            "Else redis_url of the config file, else CONQUIET_REDIS_URL.",
            metavar="URL",
        ),
    ] = None
    config: Annotated[
        Path | None, _of_every_command("--config", text="The config file, TOML or YAML.", metavar="FILE")
    ] = None
    json: Annotated[bool, _of_every_command("--json", text="Print JSON instead of text.")] = False
    verbose: Annotated[bool, _of_every_command("--verbose", "-v", text="Log at level info to stderr.")] = (
        False
    )
    log_format: Annotated[
        str | None,
        _of_every_command(
            "--log-format", text="How to log: text, or json for one object per line.", metavar="FORMAT"
        ),
    ] = None

    def as_arguments(self) -> list[str]:
        """As they are typed; without `--verbose`, since a worker has a log level of its own."""
        given = {"--url": self.url, "--config": self.config, "--log-format": self.log_format}
        typed = [str(text) for name, value in given.items() if value is not None for text in (name, value)]
        return [*typed, "--json"] if self.json else typed


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing, only show what would be done.")
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", "-g", help="The consumer group; else the setting `group`.", metavar="GROUP"),
]


class CommandContext:
    """The settings and the output of one command, and what it opens."""

    def __init__(self, options: CommonOptions) -> None:
        #: As they were given.
        self.options = options
        self.settings = settings = Settings.load(
            config=options.config,
            redis_url=options.url,
            log_level="info" if options.verbose else None,
            log_format=options.log_format,
        )
        self.output = Output(is_json=options.json)
        log_to_stderr(settings.log_level, settings.log_format)
        if settings.is_tracing:
            enable(payload_field=settings.tracing_field)

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
            raise UsageError("Give the consumer group: --group, or the setting `group`.")
        return name

    def confirmed(
        self, change: Callable[[bool], _T], question: Callable[[_T], str], *, yes: bool, dry_run: bool
    ) -> _T:
        """Make a change after it was tried as a dry run and confirmed; `change` takes whether it is one."""
        result = change(True)
        if not dry_run:
            self.output.confirm(question(result), is_yes=yes)
            result = change(False)
        return result


def command(function: Command) -> Command:
    """A command as typer takes it: a parameter that is a dataclass becomes the options of its fields."""
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, type] = {"context": CommonOptions}
    bundles |= {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}

    @functools.wraps(function)
    def run(**given: Any) -> int | None:
        for name, kind in bundles.items():
            given[name] = kind(**{option.name: given.pop(option.name) for option in fields(kind)})
        try:
            return function(CommandContext(given.pop("context")), **given)
        except BrokenPipeError:
            forget_reader()
            return ExitCode.DONE

    # The options of every command come last in its help.
    _, *own = inspect.signature(function).parameters.values()
    parameters = []
    for parameter in (*own, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY)):
        if parameter.name not in bundles:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        options = get_type_hints(bundles[parameter.name], include_extras=True)
        parameters += [
            parameter.replace(name=option.name, default=option.default, annotation=options[option.name])
            for option in fields(bundles[parameter.name])
        ]
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]  # typer looks here
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__
    return run
