"""`conquiet drain`: messages of a topic or stream through a handler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from conquiet.cli.context import CommandContext, GroupOption
from conquiet.cli.drains import (
    Database,
    HandlerName,
    InboxKeep,
    LimitOptions,
    PayloadName,
    RetryOptions,
    UseInbox,
    check_order,
    chosen_inbox,
    loaded_handler,
    loaded_payload_type,
    require_engine,
    run_and_show,
)
from conquiet.cli.exits import UsageError
from conquiet.cli.signals import Stopping
from conquiet.cli.values import Name, duration_option, parse_position

if TYPE_CHECKING:
    from conquiet.mq.own.drain_topic import Until


_Until = Annotated[
    str,
    typer.Option(
        "--until",
        help="Topics: `idle` ends it when nothing can be read, `settled` when no retry waits either, "
        "`empty` when no delayed message does.",
        metavar="WHAT",
    ),
]
_GroupStart = Annotated[
    str,
    typer.Option(
        "--group-start",
        help="Where a group begins that is not there yet: start, end, an entry id, or a time (UTC).",
        metavar="WHERE",
    ),
]


def drain(
    context: CommandContext,
    name: Name,
    handler: HandlerName,
    limits: LimitOptions,
    retry: RetryOptions,
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
        int | None, typer.Option("--partition", help="Topics: this partition alone, not all of them.")
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, help="Topics: so many partitions at once.")
    ] = 1,
    until: _Until = "idle",
    payload: PayloadName = None,
    group_start: _GroupStart = "start",
) -> int:
    """Handle messages up to the limits, each in a transaction of its own that commits before its ack.

    SIGTERM and Ctrl-C stop it between two messages. The exit code is 1 if a message failed.

    A handler of a stream is handler(msg, session); of a topic too, or handler(msg) without a database.
    """
    from conquiet import consume
    from conquiet.mq import ConsumerConfig, drain_partition, drain_topic
    from conquiet.mq.look.group_changes import create_group
    from conquiet.queue import QueueConfig, RedisStreamsQueue, unique_consumer_name

    function, group, start = loaded_handler(handler), context.group(group), parse_position(group_start)
    payload_type = loaded_payload_type(payload)
    with Stopping() as stopping, context.topic(name) as topic, context.engine(database) as engine:
        used = limits.drain_limits(stopping, idle_ms=idle)
        consumer_name = unique_consumer_name("cli") if consumer is None else consumer
        if topic.layout == "bare_stream":
            if partition is not None or until != "idle" or parallel > 1:
                raise UsageError(
                    f"{name!r} is a plain stream: --partition, --parallel and --until are for topics."
                )
            if retry.are_given:
                raise UsageError(
                    f"{name!r} is a plain stream, where what fails stays pending: --max-attempts and the "
                    "delays of retries are for topics, --max-deliveries is for streams."
                )
            check_order(topic, used.concurrency, used.order_by)
            into = require_engine(engine)
            if start != "start":
                # The queue itself would create it at the beginning.
                create_group(topic, group, start)
            queue = RedisStreamsQueue(topic.client, QueueConfig(name, group, consumer_name))
            of_stream = {"inbox": chosen_inbox(inbox, inbox_keep), "payload": payload_type}
            run = partial(consume.drain, queue, function, into, used, **of_stream)
            return run_and_show(context, "stream", run)
        if used.max_deliveries is not None:
            raise UsageError("--max-deliveries is for streams; a topic has --max-attempts.")
        config = ConsumerConfig(
            consumer_name=consumer_name,
            group_start=start,
            retry=retry.policy(),
            payload=payload_type,
            max_partitions=parallel,
        )
        how: dict[str, Any] = {"inbox": chosen_inbox(inbox, inbox_keep), "config": config}
        if partition is None:
            how["until"] = cast("Until", until)
            run = partial(drain_topic, topic, group, function, engine, used, **how)
        elif until != "idle" or parallel > 1:
            raise UsageError("--until and --parallel are for the whole topic, without --partition.")
        else:
            run = partial(drain_partition, topic, partition, group, function, engine, used, **how)
        return run_and_show(context, "topic", run, topic.partition_count)
