"""Where the time of a message goes: a flame graph and a table, by py-spy; `make profile`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bench import Bench
from benchmarks.workload import insert_order, orders_to_ignore, orders_to_insert
from conquiet import DrainLimits, Inbox, drain

_DOCS = Path(__file__).parents[1] / "docs"
_MESSAGES = 10_000

#: Parts of a message; a sample belongs to the first whose text is in any of its frames.
_PARTS = {
    "insert_order": "the handler's insert",
    "conquiet/db/inbox": "the inbox row",
    "do_commit": "the commit itself",
    "conquiet/payload": "JSON",
    "conquiet/db": "DbSession: begin and guard",
    "conquiet/queue": "reading, acks, messages",
    "conquiet/consume": "the loop: limits, attempt, settlement",
}


def main() -> int:
    """Profile a drain with a SQLite commit and an inbox row for each message."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame_graph", description=__doc__)
    parser.add_argument("--work", action="store_true", help="be the process that is profiled")
    parser.add_argument("--kind", choices=("no-op", "insert", "inbox"), default="inbox")
    options = parser.parse_args()
    if options.work:
        _work(options.kind)
        return 0
    stacks = _stacks(options.kind)
    _graph(options.kind)
    Console(width=100, highlight=False).print(_table(options.kind, stacks))
    return 0


def _work(kind: str) -> None:
    prepare = orders_to_ignore if kind == "no-op" else orders_to_insert
    handler = (lambda _msg, _session: None) if kind == "no-op" else insert_order
    inbox = Inbox() if kind == "inbox" else None
    with Bench() as bench, prepare(bench, _MESSAGES) as work:
        drain(work.queue, handler, work.engine, DrainLimits(max_messages=work.messages), inbox=inbox)


def _record(kind: str, how: str, to: Path) -> None:
    py_spy = str(Path(sys.executable).parent / "py-spy")
    command = [py_spy, "record", "--rate", "500", "--format", how, "--output", str(to), "--"]
    command += [sys.executable, "-m", "benchmarks.flame_graph", "--work", "--kind", kind]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


def _graph(kind: str) -> None:
    graph = _DOCS / f"profile-{kind}.svg"
    _record(kind, "flamegraph", graph)
    # Its title is the command line, with the paths of this machine.
    graph.write_text(graph.read_text().replace(f"{_DOCS.parent}/", ""))


def _stacks(kind: str) -> Counter[str]:
    """Samples by part of a message, of what happened below `drain`."""
    raw = _DOCS / "profile.raw"
    _record(kind, "raw", raw)
    counts: Counter[str] = Counter()
    for line in raw.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        frames = stack.split(";")
        below = next((at for at, frame in enumerate(frames) if "conquiet/consume/drain" in frame), None)
        if below is not None:
            counts[_part(frames[below:])] += int(samples)
    raw.unlink()
    return counts


def _part(frames: list[str]) -> str:
    return next(part for text, part in _PARTS.items() if any(text in frame for frame in frames))


def _table(kind: str, counts: Counter[str]) -> Table:
    table = Table("part", title=f"where the time of a message goes: {kind}")
    table.add_column("percent", justify="right")
    for part, samples in counts.most_common():
        table.add_row(part, f"{samples / counts.total():.0%}")
    return table


if __name__ == "__main__":
    sys.exit(main())
