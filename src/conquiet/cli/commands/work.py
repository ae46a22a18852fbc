"""`conquiet work`: a worker for a topic or a stream, until it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext, GroupOption
from conquiet.cli.drains import (
    BatchSize,
    Database,
    HandlerName,
    InboxKeep,
    NoOrder,
    OrderField,
    PayloadName,
    RetryOptions,
    UseInbox,
    check_order,
    chosen_inbox,
    chosen_order,
    loaded_handler,
    loaded_payload_type,
    require_engine,
)
from conquiet.cli.exits import ExitCode
from conquiet.cli.reload import run_with_reload
from conquiet.cli.signals import Stopping, received_signals
from conquiet.cli.values import Name, duration_option, parse_position
from conquiet.logs import log_to_stderr

if TYPE_CHECKING:
    from conquiet.mq import ConsumerConfig, Topic

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of `ConsumerConfig` and of the transaction."""

    database: Database = None
    inbox: UseInbox = False
    inbox_keep: InboxKeep = None
    payload: PayloadName = None
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Messages at once, of each partition.")
    ] = 1
    order_by: OrderField = None
    no_order: NoOrder = False
    batch_size: BatchSize = None
    max_outage: Annotated[
        int | None,
        duration_option("--max-outage", "How long Redis or the database may be unavailable; else 1m."),
    ] = None
    group_start: Annotated[
        str,
        typer.Option(
            "--group-start",
            help="Where a group begins that is not there yet: start, end, an entry id, or a time (UTC).",
            metavar="WHERE",
        ),
    ] = "start"
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", help="The consumer's name; else a unique one.", metavar="NAME"),
    ] = None

    def config(self, topic: Topic, retry: RetryOptions) -> ConsumerConfig:
        """As the consumer takes it."""
        from conquiet.mq import ConsumerConfig
        from conquiet.queue import unique_consumer_name

        order_by = chosen_order(self.order_by, no_order=self.no_order)
        check_order(topic, self.concurrency, order_by)
        given: dict[str, Any] = {
            "batch_size": self.batch_size,
            "max_outage_s": None if self.max_outage is None else self.max_outage / 1000,
        }
        return ConsumerConfig(
            consumer_name=unique_consumer_name("cli") if self.consumer is None else self.consumer,
            retry=retry.policy(),
            concurrency=self.concurrency,
            order_by=order_by,
            group_start=parse_position(self.group_start),
            payload=loaded_payload_type(self.payload),
            **{name: value for name, value in given.items() if value is not None},
        )

    def as_arguments(self) -> list[str]:
        """As they are typed."""
        given: dict[str, Any] = {
            "--database": self.database,
            "--inbox-keep": None if self.inbox_keep is None else f"{self.inbox_keep}ms",
            "--payload": self.payload,
            "--concurrency": self.concurrency,
            "--order-by": self.order_by,
            "--batch-size": self.batch_size,
            "--max-outage": None if self.max_outage is None else f"{self.max_outage}ms",
            "--group-start": self.group_start,
            "--consumer": self.consumer,
        }
        words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
        flags = {"--inbox": self.inbox, "--no-order": self.no_order}
        return words + [flag for flag, is_given in flags.items() if is_given]


def work(
    context: CommandContext,
    name: Name,
    handler: HandlerName,
    options: ConsumerOptions,
    retry: RetryOptions,
    group: GroupOption = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when the handler's code changes.")
    ] = False,
) -> int:
    """Handle the messages of a topic or stream until SIGTERM or Ctrl-C, each in a transaction of its own.

    Of a topic, all partitions at once; further workers of the group share them. What fails is retried, and
    is a dead letter in the end. A stream has one worker at a time for each group; another one takes over.
    """
    wanted = context.group(group)
    level = context.settings.log_level
    # As a worker of tasks: what it retries and gives up is to be seen.
    log_to_stderr("info" if level == "warning" else level, context.settings.log_format)
    if reload:
        arguments = [name, "--handler", handler, "--group", wanted, *options.as_arguments()]
        arguments += [*retry.as_arguments(), *context.options.as_arguments()]
        command = [sys.executable, "-m", "conquiet.cli", "work", *arguments]
        with received_signals() as received:
            return run_with_reload(command, Path.cwd(), received)
    return _run(context, name, loaded_handler(handler), wanted, options, retry)


def _run(
    context: CommandContext,
    name: str,
    function: Callable[..., Any],
    group: str,
    options: ConsumerOptions,
    retry: RetryOptions,
) -> int:
    from conquiet.mq import PartitionConsumer

    inbox = chosen_inbox(options.inbox, options.inbox_keep)
    with Stopping() as stopping, context.topic(name) as topic, context.engine(options.database) as engine:
        if topic.layout == "bare_stream":
            require_engine(engine)
        config = options.config(topic, retry)
        consumer = PartitionConsumer(topic, group, function, engine, inbox=inbox, config=config)
        document = {
            "name": name,
            "kind": "stream" if topic.layout == "bare_stream" else "topic",
            "group": group,
            "consumer": config.consumer_name,
            "partitions": topic.partition_count,
        }
        text = f"{name}/{group}: consumer {config.consumer_name}. Ctrl-C stops it: what runs is finished."
        context.output.show(document, text)
        consumer.start()
        while not stopping.wait(_LOOK_EVERY_S) and not consumer.join(0):
            pass
        consumer.stop()
        consumer.join()
    return ExitCode.DONE
