"""The work of a view in Redis is bounded: with more of everything on the server it runs no more commands."""

from __future__ import annotations

from conquiet import EmbeddedServer
from conquiet.queue import open_client
from tests.page.big import EVENTS, QUIET, VIEWS, commands_of, commands_of_events, fill, measure
from tests.page.served import serving

#: What blocks the server, or reads everything that there is.
_FORBIDDEN = {"keys", "flushall", "flushdb", "save", "debug", "sort", "sort_ro", "smove", "wait"}
_FORBIDDEN |= {
    "waitaof",
    "blpop",
    "brpop",
    "brpoplpush",
    "blmove",
    "blmpop",
    "bzpopmin",
    "bzpopmax",
    "bzmpop",
}
_FORBIDDEN |= {"xread", "xreadgroup"}


def test_ten_times_as_much_costs_no_more_commands():
    counts: list[dict[str, int]] = []
    used: dict[str, frozenset[str]] = {}
    for scale in (1, 10):
        with EmbeddedServer() as server, open_client(server.url) as client:
            fill(client, topics=60 * scale, pending=1_200 * scale, letters=600 * scale)
            with serving(server.url, *QUIET) as page:
                costs = measure(client, page)
                counts.append({name: cost.count for name, cost in costs.items()})
                used |= {name: cost.names for name, cost in costs.items()}

    small, large = counts

    print(*(f"{name:<26}{small[name]:>6}{large[name]:>6}" for name in large), sep="\n")
    # Those that read up to a limit reach it, ten entries at a time within a script, so that their bytes are
    # bounded; the overview reads 25 rows, and fewer on a busy machine.
    limits = {"messages, search": 250, "dead letters, search": 400, "dead letters": 100, "pending": 25}
    limits |= {"pending, longest idle": 50, "pending, idle for 1 h": 40, "replay all, dry run": 160}
    limits |= {"task without a letter": 40, "retry all, dry run": 40}
    limits |= {name: 450 for name in large if name.startswith("overview")}
    assert {name: count for name, count in large.items() if count > limits.get(name, small[name] + 3)} == {}
    assert used.keys() == VIEWS.keys()
    assert {name: names & _FORBIDDEN for name, names in used.items() if names & _FORBIDDEN} == {}


def test_what_is_sent_to_open_pages_blocks_nothing():
    with EmbeddedServer() as server, open_client(server.url) as client:
        fill(client, topics=3, pending=200, letters=10)
        with serving(server.url, *QUIET) as page:
            used = commands_of_events(client, page)

    assert used.keys() == set(EVENTS)
    assert all(used.values())
    assert {address: names & _FORBIDDEN for address, names in used.items() if names & _FORBIDDEN} == {}


def test_a_command_that_blocks_would_be_seen():
    """The check is not blind: statistics of one view are not those of the last one."""
    with EmbeddedServer() as server, open_client(server.url) as client:
        client.config_resetstat()
        client.blpop("nothing", timeout=0.01)

        assert set(commands_of(client)) & _FORBIDDEN == {"blpop"}
