"""`conquiet drain`: messages of a topic or stream through a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext, GroupOption
from conquiet.cli.drains import (
    COUNTS,
    Database,
    HandlerName,
    InboxKeep,
    LimitOptions,
    UseInbox,
    inbox_if,
    load,
    needed,
    print_report,
    run_drain,
    run_stream_drain,
)
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.signals import Stopping
from conquiet.cli.values import Name, duration_option
from conquiet.errors import PartitionBusyError

if TYPE_CHECKING:
    from conquiet.consume import DrainLimits, DrainReport


def drain(
    context: CommandContext,
    name: Name,
    handler: HandlerName,
    limits: LimitOptions,
    group: GroupOption = None,
    database: Database = None,
    inbox: UseInbox = False,
    inbox_keep: InboxKeep = None,
    idle: Annotated[
        int | None, duration_option("--idle", "End when there was nothing to read for so long.")
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", help="The consumer's name; else a unique one.", metavar="NAME"),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", help="Topics: this partition; repeatable. Else all.")
    ] = None,
) -> int:
    """Handle messages up to the limits, each in a transaction of its own that commits before its ack.

    SIGTERM and Ctrl-C stop it between two messages. The exit code is 1 if a message failed.

    A handler of a stream is handler(msg, session); of a topic too, or handler(msg) without a database.
    """
    from conquiet import consume
    from conquiet.mq import ConsumerConfig, drain_partition
    from conquiet.queue import QueueConfig, RedisStreamsQueue, unique_consumer_name

    function, group = load(handler), context.group(group)
    with Stopping() as stopping, context.topic(name) as topic, context.engine(database) as engine:
        used = limits.drain_limits(stopping, idle_ms=idle)
        consumer_name = consumer or unique_consumer_name("cli")
        if topic.layout == "bare_stream":
            if partition:
                raise UsageError(f"{name!r} is a plain stream and has no partitions.")
            into = needed(engine)
            queue = RedisStreamsQueue(topic.client, QueueConfig(name, group, consumer_name))
            run = partial(consume.drain, queue, function, into, used, inbox=inbox_if(inbox, inbox_keep))
            return run_stream_drain(context, run)
        if used.max_deliveries is not None:
            raise UsageError("--max-deliveries is for streams; a topic has its retry policy.")
        config = ConsumerConfig(consumer_name=consumer_name)
        run = partial(drain_partition, topic, group=group, handler=function, engine=engine, config=config)
        return _drain_partitions(
            context,
            topic.name,
            partition or topic.partitions,
            used,
            partial(run, inbox=inbox_if(inbox, inbox_keep)),
        )


def _drain_partitions(
    context: CommandContext,
    topic: str,
    partitions: Iterable[int],
    limits: DrainLimits,
    run: Callable[..., DrainReport],
) -> ExitCode:
    """One partition after the other; the limit of messages is over all of them."""
    reports: list[DrainReport] = []
    busy: list[int] = []
    codes: list[ExitCode] = []
    for partition in partitions:
        try:
            report, code = run_drain(partial(run, partition=partition, limits=limits))
        except PartitionBusyError:
            busy.append(partition)
            continue
        reports.append(report)
        codes.append(code)
        if report.stopped_by != "idle":
            break
        if limits.max_messages is not None:
            left = limits.max_messages - (report.read - report.handed_back)
            if left <= 0:
                break
            limits = replace(limits, max_messages=left)
    sums = {name: sum(getattr(report, name) for report in reports) for name in COUNTS}
    document = {"kind": "topic", "topic": topic, **sums, "busy": busy}
    document["partitions"] = [report.to_dict() for report in reports]

    def print_all() -> None:
        for report in reports:
            print_report(context, report)
        if busy:
            context.output.line(f"Owned by other consumers: partition {', '.join(map(str, busy))}")

    context.output.show(document, print_all)
    return max(codes, default=ExitCode.NOT_THERE if busy else ExitCode.DONE)
