"""`conquiet enqueue`: messages from an argument, a file or stdin."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import UsageError
from conquiet.cli.values import Name, duration_option

if TYPE_CHECKING:
    from conquiet.payload import Payload


def enqueue(
    context: CommandContext,
    name: Name,
    payload: Annotated[
        str | None, typer.Argument(help="One message: a JSON object.", metavar="[PAYLOAD]")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="JSON lines, one message each; - is stdin.", metavar="FILE"),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Topics: messages with one key keep their order.")
    ] = None,
    key_field: Annotated[
        str | None, typer.Option("--key-field", help="Topics: take the key from this field of each payload.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="Topics: name=value; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Topics: this partition.")] = None,
    delay: Annotated[int | None, duration_option("--delay", "Topics: deliver later, as 30s or 5m.")] = None,
    dedupe_id: Annotated[
        str | None,
        typer.Option("--dedupe-id", help="Add what was not added under this id within the last 24 hours."),
    ] = None,
) -> None:
    """Enqueue one message, or many as JSON lines; if one is refused, none is added.

    Examples:  conquiet enqueue orders '{"order": 1}'  ·  cat orders.jsonl | conquiet enqueue orders
    """
    from conquiet.mq import Message, Producer
    from conquiet.queue import StreamWriter

    payloads = _payloads(payload, file)
    with context.topic(name) as topic:
        is_stream = topic.layout == "bare_stream"
        if not is_stream:
            if not all("=" in text[1:] for text in header or ()):
                raise UsageError("A header is written as name=value.")
            message = partial(
                Message, headers=dict(text.split("=", 1) for text in header or ()), partition=partition
            )
            messages = [
                message(
                    payload=each,
                    key=key if key_field is None else _key_in(each, key_field),
                    # One id for each: a repeated call then goes on where the first one stopped.
                    dedupe_id=dedupe_id and (dedupe_id if len(payloads) == 1 else f"{dedupe_id}:{number}"),
                )
                for number, each in enumerate(payloads)
            ]
            producer = Producer(topic.client)
            if not delay:
                ids = producer.send_many(topic, messages)
            else:
                ids = [producer.send(topic, **asdict(message), delay_ms=delay) for message in messages]
        elif any(option is not None for option in (key, key_field, header, partition, delay)):
            raise UsageError(
                f"{name!r} is not a topic, and a plain stream has no keys, headers, partitions or delays. "
                f"Create the topic first: conquiet topics create {name}"
            )
        elif dedupe_id is None:
            ids = StreamWriter(topic.client, name).enqueue_many(payloads)
        else:
            ids = StreamWriter(topic.client, name).enqueue_once(payloads, dedupe_id=dedupe_id)
    if len(ids) == 1:
        text = f"1 message to {name}: {ids[0]}"
    else:
        text = f"{len(ids):,} messages to {name}" + (f": {ids[0]} to {ids[-1]}" if ids else "")
    kind = "stream" if is_stream else "topic"
    context.output.show({"name": name, "kind": kind, "enqueued": len(ids), "ids": ids}, text)


def _key_in(payload: Payload, key_field: str) -> str:
    value = payload.get(key_field)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise UsageError(f"The payload has no text or whole number in {key_field!r}: {payload!r:.100}")
    return str(value)


def _payloads(payload: str | None, file: Path | None) -> list[Payload]:
    if payload is not None and file is not None:
        raise UsageError("Give a payload or --file, not both.")
    if payload is not None:
        return [_parsed(payload, "The payload")]
    if file is None and sys.stdin.isatty():
        raise UsageError("Give a payload, --file, or JSON lines on stdin.")
    is_stdin = file is None or str(file) == "-"
    source = "stdin" if is_stdin else str(file)
    try:
        with nullcontext(sys.stdin) if is_stdin else Path(source).open(encoding="utf-8") as lines:
            numbered = enumerate(lines, start=1)
            return [_parsed(line, f"Line {number} of {source}") for number, line in numbered if line.strip()]
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _parsed(text: str, what: str) -> Payload:
    from conquiet.payload import decode_payload

    try:
        return decode_payload(text.encode())
    except ValueError as error:
        raise UsageError(f"{what} is not a message: {str(error).replace('`data`', 'it')}") from error
