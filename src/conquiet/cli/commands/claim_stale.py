"""`conquiet claim-stale`: what dead consumers of a stream left, through a handler or to another consumer."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext, DryRunOption, GroupOption
from conquiet.cli.drains import (
    Database,
    InboxKeep,
    LimitOptions,
    PayloadName,
    UseInbox,
    chosen_inbox,
    loaded_handler,
    loaded_payload_type,
    require_engine,
    run_and_show,
)
from conquiet.cli.exits import ExitCode, UsageError
from conquiet.cli.signals import Stopping
from conquiet.cli.values import duration_option


def claim_stale(
    context: CommandContext,
    name: Annotated[str, typer.Argument(help="The key of a plain stream.", metavar="STREAM")],
    limits: LimitOptions,
    group: GroupOption = None,
    min_idle: Annotated[
        int | None, duration_option("--min-idle", "Pending, and not touched for so long.")
    ] = None,
    handler: Annotated[
        str | None, typer.Option("--handler", help="Handle them: package.module:function.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Or give them to this consumer.")] = None,
    database: Database = None,
    inbox: UseInbox = False,
    inbox_keep: InboxKeep = None,
    payload: PayloadName = None,
    dry_run: DryRunOption = False,
) -> int:
    """Take over what dead consumers of a stream left pending, and handle it or give it to a consumer.

    Partitions of a topic need none of this: the next owner of a partition takes over what the last one left.
    """
    from conquiet.consume import drain_stale
    from conquiet.mq import MqAdmin
    from conquiet.queue import QueueConfig, RedisStreamsQueue, unique_consumer_name

    group = context.group(group)
    config = QueueConfig(name, group, to or unique_consumer_name("cli"))
    min_idle_ms = config.claim_idle_ms if min_idle is None else min_idle
    with Stopping() as stopping, context.topic(name) as topic, context.engine(database) as engine:
        used = limits.drain_limits(stopping)
        if topic.layout != "bare_stream":
            raise UsageError(f"{name!r} is a topic: `conquiet drain` takes over what dead owners left.")
        most = used.max_messages or 10_000
        # Also checks that the group is there: a queue would create it.
        stale = MqAdmin(topic.client).pending(topic, group, min_idle_ms=min_idle_ms, limit=most)
        ids = [entry.id for entry in stale.entries]
        if not dry_run and (handler is None) == (to is None):
            raise UsageError("Give --handler package.module:function, or --to CONSUMER.")
        if not dry_run and handler is not None:
            function, into = loaded_handler(handler), require_engine(engine)
            queue = RedisStreamsQueue(topic.client, config)
            payload_type = loaded_payload_type(payload)
            run = partial(drain_stale, queue, function, into, used, payload=payload_type)
            run = partial(run, inbox=chosen_inbox(inbox, inbox_keep))
            return run_and_show(context, "stream", partial(run, min_idle_ms=min_idle_ms))
        if not dry_run:
            ids = RedisStreamsQueue(topic.client, config).claim_ids(min_idle_ms, most)
    document = {"stream": name, "group": group, "claimed": len(ids), "ids": ids, "is_dry_run": dry_run}
    verb = "would be claimed" if dry_run else "claimed"
    context.output.show(document, "\n".join([f"{len(ids):,} messages {verb}", *ids]))
    return ExitCode.DONE
