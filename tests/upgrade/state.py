"""The state of a server as JSON, and a server with that state, made by plain commands on any version."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from tests.services import Client

#: A name or value: text, or {"base64": …} if it is not UTF-8.
Text = Any
State = dict[str, Any]

#: Fields of a hash that are times; all scores of sorted sets are, but for limits.
_TIME_FIELDS = ("acquiredAtMs", "expiresAtMs")
_TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000


def read_state(client: Client) -> State:
    """Every key of the server."""
    keys = {}
    for key in sorted(client.scan_iter("*")):
        kind = client.type(key).decode()
        keys[text_of(key)] = {"type": kind, "ttl_ms": client.pttl(key), "value": _READERS[kind](client, key)}
    seconds, microseconds = client.time()
    return {"recorded_at_ms": seconds * 1000 + microseconds // 1000, "keys": keys}


def write_state(client: Client, state: State, *, age_ms: int = 0) -> None:
    """Give an empty server that state.

    Args:
        age_ms: how long ago it was recorded; times are as far from that moment as they were then.
    """
    assert client.dbsize() == 0
    seconds, microseconds = client.time()
    later = seconds * 1000 + microseconds // 1000 - age_ms - state["recorded_at_ms"]
    for key, record in state["keys"].items():
        _WRITERS[record["type"]](client, bytes_of(key), record["value"], later)
        if record["ttl_ms"] > 0:
            client.pexpire(bytes_of(key), record["ttl_ms"])


def text_of(value: bytes) -> Text:
    """As JSON has it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def bytes_of(text: Text) -> bytes:
    """As Redis has it."""
    return base64.b64decode(text["base64"]) if isinstance(text, dict) else text.encode()


def _read_stream(client: Client, key: bytes) -> State:
    info = client.xinfo_stream(key)
    return {
        "last_id": text_of(info["last-generated-id"]),
        "entries": [
            [text_of(entry_id), [[text_of(name), text_of(value)] for name, value in fields.items()]]
            for entry_id, fields in client.xrange(key)
        ],
        "groups": [_read_group(client, key, group) for group in client.xinfo_groups(key)],
    }


def _read_group(client: Client, key: bytes, info: dict[str, Any]) -> State:
    name = info["name"]
    return {
        "name": text_of(name),
        "last_delivered_id": text_of(info["last-delivered-id"]),
        "consumers": [text_of(one["name"]) for one in client.xinfo_consumers(key, name)],
        "pending": [
            [
                text_of(row["message_id"]),
                text_of(row["consumer"]),
                row["time_since_delivered"],
                row["times_delivered"],
            ]
            for row in client.xpending_range(key, name, "-", "+", 10_000)
        ],
    }


def _write_stream(client: Client, key: bytes, value: State, _later: int) -> None:
    for entry_id, fields in value["entries"]:
        flat = [bytes_of(part) for pair in fields for part in pair]
        client.execute_command("XADD", key, entry_id, *flat)
    for group in value["groups"]:
        name = bytes_of(group["name"])
        client.execute_command("XGROUP", "CREATE", key, name, group["last_delivered_id"], "MKSTREAM")
        for consumer in group["consumers"]:
            client.execute_command("XGROUP", "CREATECONSUMER", key, name, bytes_of(consumer))
        for entry_id, consumer, idle_ms, count in group["pending"]:
            # What was handed back is idle since 1970.
            idle = ("TIME", 0) if idle_ms > _TEN_YEARS_MS else ("IDLE", idle_ms)
            claim = ("XCLAIM", key, name, bytes_of(consumer), 0, entry_id)
            client.execute_command(*claim, *idle, "RETRYCOUNT", count, "FORCE", "JUSTID", parse_justid=True)
    client.execute_command("XSETID", key, value["last_id"])


def _read_hash(client: Client, key: bytes) -> list[Any]:
    return [[text_of(name), text_of(value)] for name, value in sorted(client.hgetall(key).items())]


def _write_hash(client: Client, key: bytes, value: list[Any], later: int) -> None:
    for name, text in value:
        is_time = name in _TIME_FIELDS and isinstance(text, str) and text.isdigit()
        client.hset(key, bytes_of(name), int(text) + later if is_time else bytes_of(text))


def _read_zset(client: Client, key: bytes) -> list[Any]:
    return [[text_of(name), score] for name, score in client.zrange(key, 0, -1, withscores=True)]


def _write_zset(client: Client, key: bytes, value: list[Any], later: int) -> None:
    # How many partitions a member may own is no time.
    later = 0 if key.endswith(b":limits") else later
    for name, score in value:
        client.zadd(key, {bytes_of(name): score + later})


def _write_set(client: Client, key: bytes, value: list[Any], _later: int) -> None:
    client.sadd(key, *map(bytes_of, value))


def _write_string(client: Client, key: bytes, value: Text, _later: int) -> None:
    client.set(key, bytes_of(value))


_READERS: dict[str, Callable[[Client, bytes], Any]] = {
    "stream": _read_stream,
    "hash": _read_hash,
    "zset": _read_zset,
    "set": lambda client, key: sorted((text_of(one) for one in client.smembers(key)), key=str),
    "string": lambda client, key: text_of(client.get(key)),
}
_WRITERS: dict[str, Callable[[Client, bytes, Any, int], None]] = {
    "stream": _write_stream,
    "hash": _write_hash,
    "zset": _write_zset,
    "set": _write_set,
    "string": _write_string,
}
