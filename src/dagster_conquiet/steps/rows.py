"""The rows of an asset's last materialisation: which entries of its stream they are, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from conquiet.errors import ConquietError
from conquiet.queue import Client
from conquiet.queue.connection import AS_BYTES, key_beside
from conquiet.queue.message import pairs_of
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import run_steps
from dagster_conquiet.steps.entries import json_of_entries

#: Of small rows; of large ones few.
_PAGE = 1_000


class RowsMissingError(ConquietError):
    """The stream does not have exactly the rows of the last materialisation.

    Examples:
        >>> error = RowsMissingError(stream="assets:shop:orders", expected=100, found=90)
        >>> error.expected - error.found
        10
    """

    def __init__(self, *, stream: str, expected: int | None, found: int) -> None:
        self.stream = stream
        self.expected = expected
        self.found = found
        published = "nothing was published yet" if expected is None else f"{expected} rows were published"
        super().__init__(
            f"stream {stream!r} has {found} rows where {published}; materialise the asset again; nothing "
            "else may write to its stream or trim it"
        )


def remember_rows(client: Client, stream: str, ids: Sequence[str]) -> None:
    """Store which entries were published last, beside the stream."""
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    rows = {"stream": stream, "first_id": first, "last_id": last, "count": len(ids)}
    client.set(_key(stream), json.dumps(rows))


def trim_before(client: Client, stream: str, ids: Sequence[str]) -> None:
    """Remove what is before the rows with these ids; all, if there are none."""
    if ids:
        client.xtrim(stream, minid=ids[0], approximate=False)
    else:
        client.xtrim(stream, maxlen=0, approximate=False)


def read_rows(client: Client, stream: str) -> list[dict[str, Any]]:
    """The rows that were published last, in their order, read a page at a time.

    Raises:
        RowsMissingError: nothing was published, or the stream has more or fewer.
    """
    stored: Any = client.get(_key(stream))
    if stored is None:
        raise RowsMissingError(stream=stream, expected=None, found=0)
    try:
        rows = json.loads(stored)
        start, end, count = rows["first_id"], rows["last_id"], rows["count"]
    except (KeyError, TypeError, ValueError) as error:
        raise RowsMissingError(stream=stream, expected=None, found=0) from error
    read: list[dict[str, Any]] = []
    if start is not None:
        pages = EntryPages(stream, first=start, last=end or "+")
        call = partial(client.execute_command, **AS_BYTES)
        while not pages.is_end:
            entries = run_steps(call, pages.next(_PAGE))
            page = json_of_entries([(entry_id, dict(pairs_of(fields))) for entry_id, fields in entries])
            read += [row for _, row in page if row is not None]
    if len(read) != count:
        raise RowsMissingError(stream=stream, expected=count, found=len(read))
    return read


def _key(stream: str) -> str:
    # No part of an asset's key has a bare "@": no other asset has this stream.
    return key_beside(stream, "@rows")
