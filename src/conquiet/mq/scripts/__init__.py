"""The Lua scripts of the MQ, each called through one typed function of the module that owns its keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from conquiet.queue.connection import AS_BYTES, Client

#: What redis-py takes as an argument.
Argument = bytes | str | int


def run_script(client: Client, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
    """Run `name`.lua behind fence.lua and return its reply as bytes.

    EVALSHA with EVAL as the fallback: a server that restarted or failed over has forgotten its scripts.
    """
    text, digest = _script(name)
    tail = (len(keys), *(key.encode() for key in keys), *arguments)
    try:
        return client.execute_command("EVALSHA", digest, *tail, **AS_BYTES)  # type: ignore[no-untyped-call]
    except NoScriptError:
        return client.execute_command("EVAL", text, *tail, **AS_BYTES)  # type: ignore[no-untyped-call]


@cache
def _script(name: str) -> tuple[bytes, str]:
    folder = files(__name__)
    text = folder.joinpath("fence.lua").read_bytes() + folder.joinpath(f"{name}.lua").read_bytes()
    return text, sha1(text, usedforsecurity=False).hexdigest()
