"""One connection of a writer to one server: commands on their way, and who waits for their replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.queue.connection import Client, queue_error
from conquiet.queue.lua import LuaScript
from conquiet.spark.wire.connection import Bytes, Wire, bulk, command

#: While the server runs one script the next is being built and sent.
_MOST_ON_THE_WAY = 2

OnReply = Callable[[Any], None]


class NodeWire:
    """Sends in order and hands each reply to whoever sent the command."""

    def __init__(self, client: Client, stream: str) -> None:
        self._wire = Wire(client, stream)
        self._stream = stream
        self._waiting: deque[tuple[OnReply, bool]] = deque()

    def push(self, parts: Sequence[Bytes], on_reply: OnReply) -> None:
        """Send one command; an error reply is handed over as an exception."""
        self._make_room()
        self._wire.send(parts)
        self._waiting.append((on_reply, False))

    def push_many(self, commands: Bytes, on_reply: OnReply) -> None:
        """Send many commands; the bytes of all their replies are handed over together."""
        # Alone on the wire: the end of its replies is known only by what comes last.
        self.settle_all()
        self._wire.ask_many(commands)
        self._waiting.append((on_reply, True))

    def load(self, script: LuaScript) -> None:
        """Make the server know a script; only when nothing is on its way."""
        self.settle_all()
        self._wire.send([command("SCRIPT", "LOAD", script.text)])
        reply = self._wire.receive()
        if isinstance(reply, Exception):
            raise queue_error("SCRIPT LOAD", reply, stream=self._stream, group=None) from reply

    def settle_all(self) -> None:
        """Wait for every reply."""
        while self._waiting:
            self._settle_oldest()

    def close(self) -> None:
        """Drop the connection."""
        self._wire.close()

    def _make_room(self) -> None:
        while len(self._waiting) >= _MOST_ON_THE_WAY:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        on_reply, is_raw = self._waiting.popleft()
        on_reply(self._wire.raw_reply() if is_raw else self._wire.receive())


def script_head(script: LuaScript, keys: Sequence[str], arguments: Sequence[bytes], more: int) -> bytes:
    """The start of an EVALSHA that has `more` arguments behind these."""
    head = [b"EVALSHA", script.digest.encode(), str(len(keys)).encode(), *(key.encode() for key in keys)]
    parts = [*head, *arguments]
    return b"*%d\r\n%s" % (len(parts) + more, b"".join(map(bulk, parts)))
