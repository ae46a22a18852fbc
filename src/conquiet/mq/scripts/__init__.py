"""The Lua scripts of the MQ, each called through one typed function of the module that owns its keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from conquiet.queue.connection import Client
from conquiet.queue.lua import Argument, LuaScript


def run_script(client: Client, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
    """Run `name`.lua behind fence.lua and return its reply as bytes."""
    return script(name).run(client, keys, arguments)


@cache
def script(name: str) -> LuaScript:
    """The script `name`.lua behind fence.lua, read once."""
    folder = files(__name__)
    return LuaScript(folder.joinpath("fence.lua").read_bytes() + folder.joinpath(f"{name}.lua").read_bytes())
