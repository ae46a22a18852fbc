"""How Lua scripts are run: by their digest, with every reply as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError

from conquiet.queue.connection import AS_BYTES, Client, check_primary, in_step
from conquiet.queue.round_trip import execute_unparsed

Argument = bytes | str | int | float

#: The keys and the arguments of one run.
Call = tuple[Sequence[str], Sequence[Argument]]


class LuaScript:
    """One script; the server keeps it after its first run."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.digest = sha1(text, usedforsecurity=False).hexdigest()

    def run(self, client: Client, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run it: EVALSHA, with EVAL as the fallback, since a replica that was promoted may not have it."""
        return self.run_encoded(client, _tail(keys, arguments))

    def run_encoded(self, client: Client, tail: Sequence[Argument]) -> Any:
        """As `run`, for a caller that has the number of keys, the keys as bytes and the arguments in one."""
        try:
            return execute_unparsed(client, "EVALSHA", self.digest, *tail)
        except NoScriptError:
            return execute_unparsed(client, "EVAL", self.text, *tail)

    def run_all(self, client: Client, calls: Sequence[Call]) -> list[Any]:
        """Run it for each call, in one round trip; a reply or an error for each.

        Where a server does not have the script, the call is made in a second round trip, after the others:
        so no two calls should touch the same keys.
        """
        replies = _pipelined(client, ("EVALSHA", self.digest), calls)
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = _pipelined(client, ("EVAL", self.text), [calls[index] for index in unknown])
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        return replies


def _pipelined(client: Client, command: tuple[str, str | bytes], calls: Sequence[Call]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for keys, arguments in calls:
        pipeline.execute_command(*command, *_tail(keys, arguments), **AS_BYTES)
    with in_step(client):
        replies: list[Any] = pipeline.execute(raise_on_error=False)
    check_primary(client, replies)
    return replies


def _tail(keys: Sequence[str], arguments: Sequence[Argument]) -> tuple[Argument, ...]:
    return (len(keys), *(key.encode() for key in keys), *arguments)
