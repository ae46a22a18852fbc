"""DBOS: N enqueues workflows, `work` runs them, each with one step."""

from __future__ import annotations

import os
import sys
import threading

from dbos import DBOS, DBOSClient

from benchmarks.peers.systems import effects


@DBOS.step()
def insert(number: int) -> None:
    """The one step."""
    if os.environ.get("PEERS_WRITES") == "1":
        effects.do(number)
    else:
        effects.done()


@DBOS.workflow()
def book(number: int) -> None:
    """One task."""
    insert(number)


if __name__ == "__main__":
    DBOS(config={"name": "peers", "system_database_url": effects.DATABASE_URL, "run_admin_server": False})
    if sys.argv[1] == "work":
        DBOS.launch()
        DBOS.register_queue("peers", concurrency=20)
        threading.Event().wait()
    else:
        DBOS.launch()
        client = DBOSClient(system_database_url=effects.DATABASE_URL)
        for each in range(int(sys.argv[1])):
            client.enqueue({"workflow_name": "book", "queue_name": "peers"}, each)
        DBOS.destroy()
