"""The Lua scripts that check the ends of streams, each behind one typed function."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from conquiet.queue.connection import Client
from conquiet.queue.lua import LuaScript

_CHECK_END, _COUNT_LOSS, _MISSING = (
    LuaScript(files("conquiet.queue.scripts").joinpath(f"{name}.lua").read_bytes())
    for name in ("check_end", "count_loss", "missing")
)


class EndCheck(NamedTuple):
    """What became of a stream's end."""

    #: "unmarked": lost or deleted, and the stream has no mark by which to tell.
    state: Literal["kept", "lost", "deleted", "unmarked"]
    last_id: str
    #: Of the last entry's fields; "-" if it is not in the stream any more.
    digest: str
    #: Entries ever added; `None` if the server does not count them.
    added: int | None
    epoch: int
    #: The last id before the loss; if it is not exact, some entries behind it may have survived, too.
    after: str
    is_exact: bool
    #: The newest of the known entries that is lost.
    newest_lost: str
    #: How many were lost, by the server's count; `None` if that is not known.
    lost: int | None


def check_ends(
    client: Client, calls: Sequence[tuple[str, str, Sequence[str | int]]]
) -> list[EndCheck | Exception]:
    """Compare what is known of streams with them, in one round trip; a call is stream, mark, arguments."""
    replies = _CHECK_END.run_all(client, [((stream, mark), arguments) for stream, mark, arguments in calls])
    return [reply if isinstance(reply, Exception) else _end_check(reply) for reply in replies]


def _end_check(reply: list[Any]) -> EndCheck:
    texts: list[Any] = [part.decode() if isinstance(part, bytes) else part for part in reply]
    state, last_id, digest, added, epoch, after, is_exact, newest_lost, lost = texts
    counts = (None if added == "" else int(added), None if lost == "" else int(lost))
    return EndCheck(state, last_id, digest, counts[0], epoch, after, bool(is_exact), newest_lost, counts[1])


def missing(client: Client, stream: str, entry_ids: Sequence[str]) -> list[str]:
    """Those of the entries that are not in the stream."""
    found: list[str] = []
    # A few at a time: the server does nothing else meanwhile.
    for start in range(0, len(entry_ids), 500):
        some = entry_ids[start : start + 500]
        found += [entry_id.decode() for entry_id in _MISSING.run(client, [stream], some)]
    return found


def count_loss(client: Client, mark: str, epoch: int, *, lost: int, sent: int, last_id: str) -> int:
    """Add to the record of a loss; returns how many more are known to be lost than before."""
    return int(_COUNT_LOSS.run(client, [mark], [epoch, lost, sent, last_id]))
