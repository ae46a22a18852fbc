"""procrastinate."""

from __future__ import annotations

import os
import sys

import procrastinate

from benchmarks.peers.systems import effects

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=effects.DATABASE_URL))


@app.task(name="book", queue="peers")
def book(number: int) -> None:
    """One task."""
    if os.environ.get("PEERS_WRITES") == "1":
        effects.do(number)
    else:
        effects.done()


if __name__ == "__main__":
    sync = app.with_connector(app.connector.get_sync_connector())
    with sync.open():
        sync.schema_manager.apply_schema()
        sync.tasks["book"].batch_defer(*({"number": number} for number in range(int(sys.argv[1]))))
