"""What `conquiet drain` and `conquiet claim-stale` share: options, limits, and how a report is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import ExitCode, UsageError, exit_code_of
from conquiet.cli.signals import Stopping
from conquiet.cli.values import duration_option, shown_age
from conquiet.errors import ConquietError, DrainError, text_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.consume import DrainLimits, DrainReport
    from conquiet.consume.limits import OrderBy
    from conquiet.mq import RetryPolicy, Topic

HandlerName = Annotated[
    str, typer.Option("--handler", help="The function: package.module:function.", metavar="MODULE:FUNCTION")
]
Database = Annotated[
    str | None,
    typer.Option("--database", help="SQLAlchemy URL; else the setting `database_url`.", metavar="URL"),
]
PayloadName = Annotated[
    str | None,
    typer.Option(
        "--payload",
        help="The type of the messages' payloads, as a dataclass: package.module:Class.",
        metavar="MODULE:CLASS",
    ),
]
UseInbox = Annotated[
    bool, typer.Option("--inbox", help="Remember what was handled, so that its effects happen once.")
]
InboxKeep = Annotated[
    int | None,
    duration_option(
        "--inbox-keep", "Purge older rows of the inbox; what is redelivered later is handled again."
    ),
]
OrderField = Annotated[
    str | None,
    typer.Option("--order-by", help="With --concurrency: keep the order of equal values.", metavar="FIELD"),
]
NoOrder = Annotated[bool, typer.Option("--no-order", help="With --concurrency: messages have no order.")]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", min=1, help="The most messages of one read, or of a batch handler's transaction."
    ),
]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """The options of `DrainLimits`, which is not imported to show help: what is not given is as it says."""

    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", min=0, help="Stop after so many; 0 is no limit; else 1,000."),
    ] = None
    max_duration: Annotated[
        int | None, duration_option("--max-duration", "Begin no message after this time.")
    ] = None
    max_failures: Annotated[
        int | None,
        typer.Option("--max-failures", min=0, help="Stop after so many failures; 0 is no limit; else 10."),
    ] = None
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            "--max-deliveries", min=0, help="Streams: delivered more often, a message becomes a dead letter."
        ),
    ] = None
    take_over_dead: Annotated[
        bool | None,
        typer.Option(
            "--take-over-dead/--no-take-over-dead", help="Streams: first what drains that died have pending."
        ),
    ] = None
    on_error: Annotated[
        str | None,
        typer.Option(
            "--on-error", help="`raise` stops at the first failure, `continue` goes on.", metavar="WHAT"
        ),
    ] = None
    batch_size: BatchSize = None
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="How many messages are handled at once.")
    ] = None
    order_by: OrderField = None
    no_order: NoOrder = False

    def drain_limits(self, stopping: Stopping, *, idle_ms: int | None = None) -> DrainLimits:
        """The limits of a drain that a signal stops."""
        from conquiet.consume import DrainLimits

        given = {**asdict(self), "idle_ms": idle_ms}
        duration_ms = given.pop("max_duration")
        given["order_by"] = chosen_order(self.order_by, no_order=given.pop("no_order"))
        given["max_duration_s"] = duration_ms and duration_ms / 1000
        chosen: dict[str, Any] = {
            # 0 is no limit.
            name: value if isinstance(value, bool) else value or None
            for name, value in given.items()
            if value is not None
        }
        return DrainLimits(should_stop=stopping.is_stopping, **chosen)


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """The options of `RetryPolicy`: what is not given is as it says."""

    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", min=1, help="Attempts of a message, then it is a dead letter; else 5."
        ),
    ] = None
    backoff: Annotated[
        str | None,
        typer.Option(
            "--backoff",
            help="Delay of retries: jitter, exponential or fixed; else jitter.",
            metavar="HOW",
        ),
    ] = None
    retry_delay: Annotated[
        int | None, duration_option("--retry-delay", "The first delay, or the fixed one; else 1s.")
    ] = None
    max_retry_delay: Annotated[
        int | None, duration_option("--max-retry-delay", "The longest delay; else 1m.")
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether any of them is."""
        return any(value is not None for value in asdict(self).values())

    def policy(self) -> RetryPolicy:
        """As consumers take it."""
        from conquiet.mq import RetryPolicy

        if self.backoff not in (None, "jitter", "exponential", "fixed"):
            raise UsageError(f"--backoff must be jitter, exponential or fixed, got {self.backoff!r}.")
        longest = self.max_retry_delay
        if self.retry_delay is not None and longest is None:
            # A first delay above the default of the longest one is meant to be so.
            longest = max(self.retry_delay, RetryPolicy().max_delay_ms)
        given: dict[str, Any] = {
            "max_attempts": self.max_attempts,
            "backoff": self.backoff,
            "base_delay_ms": self.retry_delay,
            "max_delay_ms": longest,
        }
        if self.retry_delay is not None and longest is not None and self.retry_delay > longest:
            raise UsageError("--retry-delay must not be longer than --max-retry-delay.")
        return RetryPolicy(**{name: value for name, value in given.items() if value is not None})

    def as_arguments(self) -> list[str]:
        """As they are typed."""
        given = {
            "--max-attempts": self.max_attempts,
            "--backoff": self.backoff,
            "--retry-delay": None if self.retry_delay is None else f"{self.retry_delay}ms",
            "--max-retry-delay": None if self.max_retry_delay is None else f"{self.max_retry_delay}ms",
        }
        return [str(word) for pair in given.items() if pair[1] is not None for word in pair]


def chosen_order(order_by: str | None, *, no_order: bool) -> OrderBy | None:
    """The order of messages that are handled at once."""
    if no_order and order_by is not None:
        raise UsageError("--no-order and --order-by exclude each other.")
    return False if no_order else order_by


def check_order(topic: Topic, concurrency: int, order_by: OrderBy | None) -> None:
    """Refuse a plain stream whose order nobody has chosen, in the words of the options."""
    if topic.layout == "bare_stream" and concurrency > 1 and order_by is None:
        raise UsageError(
            f"{topic.name!r} is a plain stream, whose messages have no keys: with --concurrency, give "
            "--order-by FIELD, or --no-order if nothing has to keep its order."
        )


def loaded_handler(reference: str) -> Callable[..., Any]:
    """The handler; modules are also looked for in the current directory, as `python -m` does."""
    from conquiet.consume import load_handler

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return load_handler(reference)


def loaded_payload_type(reference: str | None) -> Any:
    """The type of payloads, found as handlers are."""
    from conquiet.consume.references import load_payload_type

    return None if reference is None else load_payload_type(reference)


def chosen_inbox(is_used: bool, keep_ms: int | None) -> Any:
    """An inbox, if one is wanted."""
    if not is_used:
        if keep_ms is not None:
            raise UsageError("--inbox-keep is for --inbox.")
        return None
    from conquiet.db import Inbox

    return Inbox(keep_for=timedelta(milliseconds=keep_ms) if keep_ms else None)


def require_engine(engine: Engine | None) -> Engine:
    """The engine; a stream is not drained without one."""
    if engine is None:
        raise UsageError("A stream is drained into a database: --database, or the setting `database_url`.")
    return engine


def run_drain(run: Callable[[], DrainReport]) -> tuple[DrainReport, ExitCode]:
    """Run one drain; an error that has a report is printed, and becomes an exit code."""
    try:
        report = run()
    except DrainError as error:
        return error.report, ExitCode.FAILED
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Also a SystemExit of the handler: its own exit code says nothing about the drain.
        found: DrainReport | None = getattr(error, "drain_report", None)
        if found is None:
            raise
        typer.echo(f"conquiet: {text_of(error)}", err=True)
        # The handler's own error, unless it is one of conquiet's: then Redis or the database was unavailable.
        return found, exit_code_of(error) if isinstance(error, ConquietError) else ExitCode.FAILED
    has_failed = report.failed or report.retried or report.dead_lettered
    return report, ExitCode.FAILED if has_failed else ExitCode.DONE


def run_and_show(
    context: CommandContext, kind: str, run: Callable[[], DrainReport], partitions: int | None = None
) -> ExitCode:
    """Drain a stream, or so many partitions of a topic, and show the report."""
    report, code = run_drain(run)
    context.output.show({"kind": kind, **report.to_dict()}, lambda: print_report(context, report))
    return ExitCode.NOT_THERE if len(report.busy) == partitions else code


def print_report(context: CommandContext, report: DrainReport) -> None:
    """A line of counts for people, and the first failures."""
    place = report.stream if report.partition is None else f"{report.topic}[{report.partition}]"
    counts = {name.replace("_", " "): count for name, count in report.counts.items()}
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name == "handled")
    context.output.line(f"{place}/{report.group}: {shown} in {report.seconds:.1f} s ({report.stopped_by})")
    for failure in report.failures[:20]:
        context.output.line(f"  {failure.id} {text_of(failure.error)}")
    if report.failed:
        context.output.line("Failed messages are still pending; see `conquiet pending`.")
    if report.pending_elsewhere:
        context.output.line(
            f"{report.pending_elsewhere:,} messages are pending at other consumers, the oldest for "
            f"{shown_age(report.elsewhere_idle_ms)}."
        )
    if report.busy:
        context.output.line(f"Owned by other consumers: partition {', '.join(map(str, report.busy))}")
