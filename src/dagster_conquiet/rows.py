"""Which part of a stream is the last materialisation of an asset: remembered beside the stream."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from conquiet.errors import ConquietError
from conquiet.queue import Client
from conquiet.queue.connection import key_beside
from dagster_conquiet.replies import entries

_PAGE = 1_000


class RowsMissingError(ConquietError):
    """The stream does not hold exactly the rows of the last materialisation."""

    def __init__(self, *, stream: str, expected: int | None, found: int) -> None:
        self.stream = stream
        self.expected = expected
        self.found = found
        told = "nothing was published yet" if expected is None else f"{expected} rows were published"
        super().__init__(
            f"stream {stream!r} has {found} rows where {told}; materialise the asset again, and let nobody "
            "else write to its stream or trim it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """The entries of one materialisation."""

    stream: str
    first_id: str | None
    last_id: str | None
    count: int


def remember_rows(client: Client, rows: StoredRows) -> None:
    """Write down what was published last."""
    client.set(_key(rows.stream), json.dumps(asdict(rows)))


def last_rows(client: Client, stream: str) -> StoredRows:
    """What was published last.

    Raises:
        RowsMissingError: nothing was.
    """
    found: Any = client.get(_key(stream))
    if found is None:
        raise RowsMissingError(stream=stream, expected=None, found=0)
    return StoredRows(**json.loads(found))


def read_rows(client: Client, rows: StoredRows) -> list[dict[str, Any]]:
    """The rows, in the order in which they were published, a page at a time.

    Raises:
        RowsMissingError: there are more or fewer.
    """
    read: list[dict[str, Any]] = []
    start = rows.first_id
    while start is not None:
        page = entries(client.xrange(rows.stream, start, rows.last_id or "+", count=_PAGE))
        read += [row for _, row in page if row is not None]
        start = f"({page[-1][0]}" if len(page) == _PAGE else None
    if len(read) != rows.count:
        raise RowsMissingError(stream=rows.stream, expected=rows.count, found=len(read))
    return read


def _key(stream: str) -> str:
    # No part of an asset's key has a bare "@": this is no other asset's stream.
    return key_beside(stream, "@rows")
