"""The work of a view in Redis is bounded: with more of everything on the server it runs no more commands."""

from __future__ import annotations

from conquiet import EmbeddedServer
from conquiet.queue import open_client
from tests.page.big import QUIET, fill, measure
from tests.page.served import serving

#: What blocks the server, or reads everything that there is.
_FORBIDDEN = ("keys", "flushall", "flushdb", "save", "debug", "sort", "smove", "wait", "blpop", "xread")


def test_ten_times_as_much_costs_no_more_commands():
    counts: list[dict[str, int]] = []
    used: dict[str, object] = {}
    for scale in (1, 10):
        with EmbeddedServer() as server, open_client(server.url) as client:
            fill(client, topics=60 * scale, pending=1_200 * scale, letters=600 * scale)
            with serving(server.url, *QUIET) as page:
                counts.append({name: count for name, (_, count, _) in measure(client, page).items()})
                used |= client.info("commandstats")
    small, large = counts

    print(*(f"{name:<26}{small[name]:>6}{large[name]:>6}" for name in large), sep="\n")
    # Those that read up to a limit reach it; the overview reads 25 rows, and fewer on a busy machine.
    limits = {"messages, search": 20, "dead letters, search": 80, "dead letters": 30, "pending": 25}
    limits |= {"pending, longest idle": 50, "pending, idle for 1 h": 40, "replay all, dry run": 50}
    limits |= {"task without a letter": 40, "retry all, dry run": 40}
    limits |= {name: 450 for name in large if name.startswith("overview")}
    assert {name: count for name, count in large.items() if count > limits.get(name, small[name] + 3)} == {}
    assert not [name for name in used if name.removeprefix("cmdstat_") in _FORBIDDEN]
