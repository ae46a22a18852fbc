"""`conquiet drain` and `conquiet claim-stale`: messages through a handler, or to another consumer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from conquiet.cli.drain_options import (
    BatchSize,
    Consumer,
    Database,
    HandlerName,
    IdleTime,
    MaxDeliveries,
    MaxDuration,
    MaxFailures,
    MaxMessages,
    OnError,
    QuarantineTo,
    UseInbox,
)
from conquiet.cli.exits import ExitCode, UsageError, exit_code_of
from conquiet.cli.site import DryRunOption, GroupOption, Site, command
from conquiet.cli.stopping import Stopping
from conquiet.cli.values import Name, parse_duration
from conquiet.errors import ConquietError, DrainError, text_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.consume import DrainReport
    from conquiet.mq import Topic
    from conquiet.queue import RedisStreamsQueue

_BOTH: tuple[str, ...] = ("raise", "continue")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "drain")(drain)
    command(app, "claim-stale")(claim_stale)


def drain(
    site: Site,
    name: Name,
    handler: HandlerName,
    group: GroupOption = None,
    database: Database = None,
    max_messages: MaxMessages = 1_000,
    inbox: UseInbox = False,
    on_error: OnError = "continue",
    max_failures: MaxFailures = None,
    max_deliveries: MaxDeliveries = None,
    quarantine_to: QuarantineTo = None,
    max_duration: MaxDuration = None,
    idle: IdleTime = "1s",
    batch_size: BatchSize = 100,
    consumer: Consumer = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", help="Topics: this partition; repeatable. Else all.")
    ] = None,
) -> int:
    """Handle up to --max-messages, each in a transaction of its own that commits before its ack.

    SIGTERM and Ctrl-C stop it between two messages. The exit code is 1 if a message failed.

    A handler of a stream is handler(msg, session); of a topic too, or handler(msg) without a database.
    """
    found = _load(handler)
    limits: dict[str, Any] = {
        "max_messages": max_messages,
        "max_failures": max_failures,
        "max_duration_s": parse_duration(max_duration) / 1000 if max_duration else None,
        "idle_ms": parse_duration(idle),
        "inbox": _inbox(inbox),
    }
    with Stopping() as stopping, site.topic(name) as topic, site.engine(database) as engine:
        limits["should_stop"] = stopping.is_stopping
        if topic.layout != "legacy":
            _refuse_stream_options(max_deliveries, quarantine_to)
            from conquiet.cli.partitions import drain_partitions

            place = (topic, site.group(group), partition, consumer)
            return drain_partitions(site, place, found, engine, limits)
        if partition:
            raise UsageError(f"{name!r} is no topic and has no partitions.")
        into = _needed(engine)
        from conquiet.consume import drain as drain_stream

        limits |= {"batch_size": batch_size, "max_deliveries": max_deliveries, "quarantine_to": quarantine_to}
        queue = _queue(topic, site.group(group), consumer)
        code = _reported(
            site, lambda: drain_stream(queue, found, into, on_error=_on_error(on_error), **limits)
        )
        _forget_own_name(queue, consumer)
        return code


def claim_stale(
    site: Site,
    name: Annotated[str, typer.Argument(help="The key of a plain stream.", metavar="STREAM")],
    group: GroupOption = None,
    min_idle: Annotated[
        str, typer.Option("--min-idle", help="Untouched for so long.", metavar="DURATION")
    ] = "60s",
    handler: Annotated[
        str | None, typer.Option("--handler", help="Handle them: package.module:function.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Or give them to this consumer's name.")] = None,
    database: Database = None,
    max_messages: MaxMessages = 1_000,
    inbox: UseInbox = False,
    on_error: OnError = "continue",
    max_failures: MaxFailures = None,
    max_deliveries: MaxDeliveries = None,
    quarantine_to: QuarantineTo = None,
    max_duration: MaxDuration = None,
    dry_run: DryRunOption = False,
) -> int:
    """Take over what a dead consumer of a stream left pending, and handle it or give it to somebody.

    Partitions of a topic need none of this: whoever drains one takes over what its last owner left.
    """
    from conquiet.mq import MqAdmin

    min_idle_ms, group = parse_duration(min_idle), site.group(group)
    with Stopping() as stopping, site.topic(name) as topic, site.engine(database) as engine:
        if topic.layout != "legacy":
            raise UsageError(f"{name!r} is a topic: `conquiet drain` takes over what dead owners left.")
        # Also says that the group is there: a queue would create it.
        stale = MqAdmin(topic.client).pending(name, group, min_idle_ms=min_idle_ms, limit=max_messages)
        if dry_run:
            return _show_claimed(site, name, group, [entry.id for entry in stale.entries], is_dry_run=True)
        if (handler is None) == (to is None):
            raise UsageError("Say what becomes of them: --handler package.module:function, or --to CONSUMER.")
        if handler is None:
            ids = _given_to(_queue(topic, group, to), min_idle_ms, max_messages)
            return _show_claimed(site, name, group, ids, is_dry_run=False)
        into = _needed(engine)
        from conquiet.consume import drain_stale

        found, queue = _load(handler), _queue(topic, group, None)
        limits: dict[str, Any] = {
            "max_messages": max_messages,
            "max_failures": max_failures,
            "max_deliveries": max_deliveries,
            "quarantine_to": quarantine_to,
            "max_duration_s": parse_duration(max_duration) / 1000 if max_duration else None,
            "inbox": _inbox(inbox),
            "should_stop": stopping.is_stopping,
        }
        code = _reported(
            site,
            lambda: drain_stale(
                queue, found, into, min_idle_ms=min_idle_ms, on_error=_on_error(on_error), **limits
            ),
        )
        _forget_own_name(queue, None)
        return code


def _needed(engine: Engine | None) -> Engine:
    if engine is None:
        raise UsageError("A stream is drained into a database: --database, or the setting `database_url`.")
    return engine


def _given_to(queue: RedisStreamsQueue, min_idle_ms: int, max_messages: int) -> list[str]:
    """Claim for the consumer of the queue, whoever that is; returns the ids."""
    delivery, _ = queue.claim_page(min_idle_ms, max_messages)
    return [msg.id for msg in delivery.messages] + [entry.id for entry in delivery.malformed]


def _reported(site: Site, run: Callable[[], DrainReport]) -> int:
    """Show the report of a drain, also of one that ended with an error."""
    error: Exception | None = None
    try:
        report, code = run(), ExitCode.DONE
    except DrainError as failed:
        report, code = failed.report, ExitCode.FAILED
    except Exception as failed:
        found: DrainReport | None = getattr(failed, "drain_report", None)
        if found is None:
            raise
        # The handler's own, unless it is one of conquiet's: then Redis or the database was away.
        code = exit_code_of(failed) if isinstance(failed, ConquietError) else ExitCode.FAILED
        report, error = found, failed
    site.output.show({"kind": "stream", **report.to_dict()}, lambda: _tell(site, report))
    if error is not None:
        typer.echo(f"conquiet: {text_of(error)}", err=True)
    return code


def _tell(site: Site, report: DrainReport) -> None:
    counts = {
        "read": report.read,
        "handled": report.handled,
        "skipped": report.skipped,
        "failed": report.failed,
        "quarantined": report.quarantined,
        "handed back": report.handed_back,
        "taken over": report.taken_over,
    }
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "handled")
    site.output.say(f"{report.stream}/{report.group}: {told} in {report.seconds:.1f} s ({report.stopped_by})")
    for failure in report.failures[:20]:
        site.output.say(f"  {failure.id} {text_of(failure.error)}")
    if report.failures:
        site.output.say("They are still pending; see `conquiet pending`.")


def _show_claimed(site: Site, name: str, group: str, ids: list[str], *, is_dry_run: bool) -> int:
    verb = "would be claimed" if is_dry_run else "claimed"
    document = {"stream": name, "group": group, "claimed": len(ids), "ids": ids, "is_dry_run": is_dry_run}
    site.output.show(document, lambda: site.output.say("\n".join([f"{len(ids):,} messages {verb}", *ids])))
    return ExitCode.DONE


def _forget_own_name(queue: RedisStreamsQueue, given: str | None) -> None:
    """Leave no name behind that nobody will use again; with something pending it stays, and is claimed."""
    if given is None:
        queue.remove_consumer(queue.config.consumer_name)


def _queue(topic: Topic, group: str, consumer: str | None) -> RedisStreamsQueue:
    from conquiet.queue import QueueConfig, RedisStreamsQueue, unique_consumer_name

    config = QueueConfig(topic.name, group, consumer or unique_consumer_name("cli"))
    return RedisStreamsQueue(topic.client, config)


def _load(reference: str) -> Callable[..., Any]:
    from conquiet.consume import load_handler

    # As `python -m` would: a console script does not look for modules where it is started.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return load_handler(reference)


def _inbox(is_used: bool) -> Any:
    if not is_used:
        return None
    from conquiet.db import Inbox

    return Inbox()


def _on_error(value: str) -> Literal["raise", "continue"]:
    if value not in _BOTH:
        raise UsageError(f"--on-error must be raise or continue, got {value!r}.")
    return "raise" if value == "raise" else "continue"


def _refuse_stream_options(*given: object) -> None:
    if any(option is not None for option in given):
        raise UsageError("--max-deliveries and --quarantine-to are for streams; a topic has dead letters.")
