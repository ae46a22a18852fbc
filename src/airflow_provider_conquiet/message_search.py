"""MessageSearch: reads streams without a group until a message matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from conquiet import load_handler
from conquiet.payload import decode_payload
from conquiet.queue import AsyncClient, Client
from conquiet.queue.connection import AS_BYTES, visible_errors
from conquiet.queue.message import data_of
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import Steps, run_steps, run_steps_async

Match = Callable[[dict[str, Any]], Any]

_PAGE = 500


@dataclass(slots=True)
class MessageSearch:
    """Finds the first message that matches, and remembers where it has read.

    Args:
        after: the entry id after which each stream is read; moved on by each search.
        is_topic: the streams are partitions: what is matched is the payload in the envelope.
        match: a function from payload to bool, or its import string.
        equals: instead of that, fields and the values they must have.
    """

    after: dict[str, str]
    is_topic: bool = False
    match: str | Match | None = None
    equals: Mapping[str, Any] | None = None
    _function: Match | None = field(default=None, init=False)

    def load(self) -> None:
        """Import what matches.

        Raises:
            ImportError, ValueError, TypeError: there is no such function.
        """
        self._function = load_handler(self.match) if isinstance(self.match, str) else self.match

    def find(self, client: Client) -> tuple[str, str] | None:
        """Stream and id of a message that matches; `None` after all that is there was read."""
        with visible_errors("XRANGE", stream=", ".join(self.after), group=None):
            return run_steps(partial(client.execute_command, **AS_BYTES), self.steps())

    async def find_async(self, client: AsyncClient) -> tuple[str, str] | None:
        """As `find`, on an asyncio client."""
        with visible_errors("XRANGE", stream=", ".join(self.after), group=None):
            return await run_steps_async(partial(client.execute_command, **AS_BYTES), self.steps())

    def steps(self) -> Steps[tuple[str, str] | None]:
        """The commands of a search; large entries are read a few at a time."""
        for stream in self.after:
            pages = EntryPages(stream, first=f"({self.after[stream]}")
            while not pages.is_end:
                for raw_id, fields in (yield from pages.next(_PAGE)):
                    self.after[stream] = raw_id.decode()
                    if self._is_match(fields):
                        return stream, self.after[stream]
        return None

    def _is_match(self, fields: Any) -> bool:
        try:
            payload = decode_payload(data_of(fields))
            if self.is_topic:
                payload = payload["payload"]
        except (ValueError, KeyError):
            # A malformed entry cannot match; the drain of the stream reports it.
            return False
        if self._function is not None:
            return bool(self._function(payload))
        return {**payload, **(self.equals or {})} == payload
