"""What was sent, what is in the database, and whether they are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import redis
from rich.table import Table
from sqlalchemy import Connection, text

from examples.demo.watcher import Backlog


@dataclass(frozen=True, slots=True)
class Total:
    """So many orders, worth so much."""

    orders: int
    cents: int

    def __str__(self) -> str:
        return f"{self.orders:,} orders, {self.cents:,} cents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the messages of one group; `None` where it was not counted."""

    title: str
    backlog: Backlog
    #: Transactions that were committed, by the rows of the inbox.
    handled: int
    #: Rows of the application's table.
    effects: int
    #: Deliveries after a message's first one.
    redelivered: int | None
    skipped: int | None
    dead_letters: int

    @property
    def is_settled(self) -> bool:
        """Whether every message is handled, acked and has its effect, and none was given up."""
        backlog = self.backlog
        nothing_left = (backlog.pending, backlog.waiting, self.dead_letters) == (0, 0, 0)
        return nothing_left and self.handled == self.effects == backlog.enqueued


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The end of the result: counts of each group, the total that was sent, and the totals that were kept."""

    counts: tuple[Counts, ...]
    sent: Total
    kept: Mapping[str, Total]

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, twice, waiting or given up."""
        are_equal = bool(self.kept) and all(total == self.sent for total in self.kept.values())
        return are_equal and all(counts.is_settled for counts in self.counts)

    def sentence(self) -> str:
        """What is proved, or what is wrong."""
        places = [f"{place} {total}" for place, total in self.kept.items()]
        if self.is_right:
            return (
                f"Totals in the database equal totals sent. Sent: {self.sent}; {'; '.join(places)}. "
                "Nothing lost, nothing twice."
            )
        wrong = [f"{place} {total}" for place, total in self.kept.items() if total != self.sent]
        wrong += [f"unsettled: {counts.title}" for counts in self.counts if not counts.is_settled]
        return f"THE TOTALS DIFFER. Sent: {self.sent}; {'; '.join(wrong)}."

    def table(self) -> Table:
        """One column for each group."""
        table = Table(title="What became of the messages", title_justify="left")
        table.add_column("")
        for counts in self.counts:
            table.add_column(counts.title, justify="right")
        rows: dict[str, list[int | None]] = {
            "enqueued": [counts.backlog.enqueued for counts in self.counts],
            "handled": [counts.handled for counts in self.counts],
            "effects in the database": [counts.effects for counts in self.counts],
            "redelivered": [counts.redelivered for counts in self.counts],
            "skipped by the inbox": [counts.skipped for counts in self.counts],
            "dead letters": [counts.dead_letters for counts in self.counts],
            "lag": [counts.backlog.waiting for counts in self.counts],
            "pending": [counts.backlog.pending for counts in self.counts],
        }
        for name, values in rows.items():
            table.add_row(name, *("-" if value is None else f"{value:,}" for value in values))
        return table


def sent_to(client: redis.Redis, stream: str) -> Total:
    """The total of what is in the stream, by its payloads."""
    entries: list[tuple[str, dict[str, str]]] = client.execute_command("XRANGE", stream, "-", "+")
    payloads = [json.loads(fields["data"]) for _id, fields in entries]
    return Total(len(payloads), sum(payload["cents"] for payload in payloads))


def handled_by(connection: Connection, streams: tuple[str, ...], group: str) -> int:
    """How many messages of these streams the inbox has for the group."""
    statement = text(
        "SELECT count(*) FROM conquiet_inbox WHERE stream = :stream AND consumer_group = :consumer_group"
    )
    places = [{"stream": stream, "consumer_group": group} for stream in streams]
    return sum(int(connection.execute(statement, place).scalar_one()) for place in places)
