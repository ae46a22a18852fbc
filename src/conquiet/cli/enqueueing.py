"""`conquiet enqueue`: messages from an argument, a file or stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.exits import UsageError
from conquiet.cli.site import Site, command
from conquiet.cli.values import Name, parse_duration, parse_header

if TYPE_CHECKING:
    from conquiet.mq import Topic

Payload = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "enqueue")(enqueue)


def enqueue(
    site: Site,
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
    delay: Annotated[
        str | None, typer.Option("--delay", help="Topics: deliver later, as 30s or 5m.", metavar="DURATION")
    ] = None,
    dedupe_id: Annotated[
        str | None,
        typer.Option("--dedupe-id", help="Add what was not added under this id within the last 24 hours."),
    ] = None,
) -> None:
    """Enqueue one message, or many as JSON lines; if one is refused, none is added.

    Examples:  conquiet enqueue orders '{"order": 1}'  ·  cat orders.jsonl | conquiet enqueue orders
    """
    from conquiet.queue import StreamWriter

    payloads = _payloads(payload, file)
    with site.topic(name) as topic:
        if topic.layout == "legacy":
            _refuse_topic_options(key, key_field, header, partition, delay, name=name)
            writer = StreamWriter(topic.client, name)
            if dedupe_id is None:
                ids = writer.enqueue_many(payloads)
            else:
                ids = writer.enqueue_once(payloads, dedupe_id=dedupe_id)
        else:
            headers = dict(map(parse_header, header or ()))
            messages = [_message(one, key, key_field, headers, partition) for one in payloads]
            ids = _sent(topic, messages, parse_duration(delay) if delay else 0, dedupe_id)
    kind = "stream" if topic.layout == "legacy" else "topic"
    document = {"name": name, "kind": kind, "enqueued": len(ids), "ids": ids}
    site.output.show(document, lambda: site.output.say(_told(name, ids)))


def _told(name: str, ids: list[str]) -> str:
    if len(ids) == 1:
        return f"1 message to {name}: {ids[0]}"
    return f"{len(ids):,} messages to {name}" + (f": {ids[0]} to {ids[-1]}" if ids else "")


def _sent(topic: Topic, messages: list[dict[str, Any]], delay_ms: int, dedupe_id: str | None) -> list[str]:
    from conquiet.mq import Message, Producer

    producer = Producer(topic.client)
    if not delay_ms and dedupe_id is None:
        return producer.send_many(topic.name, [Message(**message) for message in messages])
    ids = []
    for number, message in enumerate(messages):
        # One id for each: a repeated call then goes on where the first one stopped.
        own = dedupe_id if dedupe_id is None or len(messages) == 1 else f"{dedupe_id}:{number}"
        ids.append(producer.send(topic.name, **message, delay_ms=delay_ms, dedupe_id=own))
    return ids


def _message(
    payload: Payload, key: str | None, key_field: str | None, headers: dict[str, str], partition: int | None
) -> dict[str, Any]:
    if key_field is not None:
        found = payload.get(key_field)
        if not isinstance(found, str | int) or isinstance(found, bool):
            raise UsageError(f"The payload has no text or whole number in {key_field!r}: {payload!r:.100}")
        key = str(found)
    return {"payload": payload, "key": key, "headers": headers, "partition": partition}


def _refuse_topic_options(*given: object, name: str) -> None:
    if any(option is not None for option in given):
        raise UsageError(
            f"{name!r} is no topic, and a plain stream has no keys, headers, partitions or delays. "
            f"Create the topic first: conquiet topics create {name}"
        )


def _payloads(payload: str | None, file: Path | None) -> list[Payload]:
    if payload is not None and file is not None:
        raise UsageError("Give a payload or --file, not both.")
    if payload is not None:
        return [_parsed(payload, "The payload")]
    if file is None and sys.stdin.isatty():
        raise UsageError("Give a payload, --file, or JSON lines on stdin.")
    if file is None or str(file) == "-":
        return _parsed_lines(sys.stdin, "stdin")
    try:
        with file.open(encoding="utf-8") as lines:
            return _parsed_lines(lines, str(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _parsed_lines(lines: Iterable[str], source: str) -> list[Payload]:
    numbered = enumerate(lines, start=1)
    return [_parsed(line, f"Line {number} of {source}") for number, line in numbered if line.strip()]


def _parsed(text: str, what: str) -> Payload:
    from conquiet.payload import decode_payload

    try:
        return decode_payload(text.encode())
    except ValueError as error:
        raise UsageError(f"{what} is no message: {str(error).replace('`data`', 'it')}") from error
