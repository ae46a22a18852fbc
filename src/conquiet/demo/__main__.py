"""`python -m conquiet.demo`: 1,000 orders, a worker killed with SIGKILL, nothing lost, nothing twice."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from sqlalchemy import Engine

from conquiet.demo.orders import Booked, booked, bookings, make_orders, open_database, open_queue
from conquiet.embedded import EmbeddedServer
from conquiet.queue import BacklogStats

console = Console(highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was sent, what the killed worker left, what the other one did, and what is there in the end."""

    sent: int
    cents: int
    left: BacklogStats
    claimed: dict[str, Any]
    drained: dict[str, Any]
    result: Booked
    after: BacklogStats

    @property
    def is_right(self) -> bool:
        """Whether each order is booked once and nothing waits."""
        in_database = (self.result.rows, self.result.orders, self.result.cents)
        return in_database == (self.sent, self.sent, self.cents) and (self.after.pending, self.after.lag) == (
            0,
            0,
        )


class Watched:
    """The bar: orders in the database out of orders sent."""

    def __init__(self, progress: Progress, engine: Engine, total: int) -> None:
        self._progress = progress
        self._engine = engine
        self._bar: TaskID = progress.add_task("", total=total)

    def until_booked(self, worker: subprocess.Popen[str], rows: float) -> None:
        """Follow the worker until so many orders are booked, or it has ended."""
        while worker.poll() is None and self._look() < rows:
            time.sleep(0.01)
        self._look()

    def says(self, text: str) -> None:
        """What the bar is about."""
        self._progress.update(self._bar, description=text)

    def _look(self) -> int:
        rows = booked(self._engine).rows
        self._progress.update(self._bar, completed=rows)
        return rows


def main() -> int:
    """Run the demo; the exit code says whether the totals agree."""
    parser = argparse.ArgumentParser(prog="python -m conquiet.demo", description=__doc__)
    parser.add_argument("--orders", type=int, default=1_000, help="how many orders to send (default: 1000)")
    count = parser.parse_args().orders
    with TemporaryDirectory(prefix="conquiet-demo-") as name:
        directory = Path(name)
        with EmbeddedServer(dir=directory / "server", appendonly=True) as server:
            console.print(f"A private server {server.version} at {server.url}, and a SQLite database.")
            story = _run(server.url, str(directory / "orders.db"), count)
    _tell(story)
    return 0 if story.is_right else 1


def _run(url: str, database: str, count: int) -> Story:
    engine = open_database(database)
    bookings.create(engine)
    orders = make_orders(count)
    with open_queue(url, "demo") as queue, _progress() as progress:
        queue.enqueue_many(orders)
        watched = Watched(progress, engine, count)
        watched.says("worker-1 books orders")
        _kill_in_the_middle(_start(url, database, "worker-1", count), watched, count)
        left = queue.backlog_stats()
        progress.console.print(
            f"[bold red]worker-1 was killed with SIGKILL[/]: {booked(engine).rows} orders booked, "
            f"{left.pending} messages in its hands."
        )
        watched.says("worker-2 claims and books")
        time.sleep(queue.config.claim_idle_ms / 1000)
        reports = _finish(_start(url, database, "worker-2", count), watched, count)
        after = queue.backlog_stats()
    cents = sum(order["cents"] for order in orders)
    return Story(sent=count, cents=cents, left=left, result=booked(engine), after=after, **reports)


def _start(url: str, database: str, consumer: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "conquiet.demo.worker", url, database, consumer, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _kill_in_the_middle(worker: subprocess.Popen[str], watched: Watched, count: int) -> None:
    try:
        watched.until_booked(worker, count * 0.4)
    finally:
        worker.kill()
        worker.communicate()


def _finish(worker: subprocess.Popen[str], watched: Watched, count: int) -> dict[str, Any]:
    try:
        watched.until_booked(worker, count)
        printed, _ = worker.communicate()
    except BaseException:
        worker.kill()
        raise
    watched.until_booked(worker, count)
    if worker.returncode != 0:
        raise SystemExit(f"worker-2 failed with exit code {worker.returncode}")
    reports: dict[str, Any] = json.loads(printed)
    return reports


def _tell(story: Story) -> None:
    table = Table(title="What became of the orders", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in (
        ("enqueued", f"{story.sent:,}"),
        ("pending when worker-1 was killed", f"{story.left.pending:,}"),
        ("claimed by worker-2", f"{story.claimed['read']:,}"),
        ("… of these committed before, skipped by the inbox", f"{story.claimed['skipped']:,}"),
        ("read by worker-2 as new", f"{story.drained['read']:,}"),
        ("rows in the database", f"{story.result.rows:,}"),
        ("different orders in the database", f"{story.result.orders:,}"),
        ("cents sent / booked", f"{story.cents:,} / {story.result.cents:,}"),
        ("pending / lag at the end", f"{story.after.pending} / {story.after.lag}"),
    ):
        table.add_row(name, value)
    console.print(table)
    if story.is_right:
        console.print(
            f"[bold green]Enqueued = rows in the database = {story.sent:,}: nothing lost, nothing twice.[/]"
        )
    else:
        console.print("[bold red]The totals differ. This is a bug: please report it with the table above.[/]")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


if __name__ == "__main__":
    sys.exit(main())
