"""pgmq, installed by SQL alone: N sends, `work` reads, inserts and deletes in one transaction."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.resources import files

import psycopg

from benchmarks.peers.systems import effects

_READ = "SELECT msg_id, message FROM pgmq.read('peers', 30, %s)"
_DELETE = "SELECT pgmq.delete('peers', %s::bigint[])"
_SEND = "SELECT pgmq.send_batch('peers', %s::jsonb[])"


def work(batch_size: int) -> None:
    """One transaction for each batch, until it is killed."""
    writes = os.environ.get("PEERS_WRITES") == "1"
    with psycopg.connect(effects.DATABASE_URL) as connection:
        while True:
            messages = connection.execute(_READ, (batch_size,)).fetchall()
            for _, message in messages:
                effects.work()
                if writes:
                    connection.execute(effects.INSERT, (message["number"],))
                effects.work()
            connection.execute(_DELETE, ([msg_id for msg_id, _ in messages],))
            connection.commit()
            for _ in messages:
                effects.done()
            if not messages:
                time.sleep(0.1)


def enqueue(total: int) -> None:
    """Install it and add the messages."""
    with psycopg.connect(effects.DATABASE_URL) as connection:
        connection.execute(files("pgmq.sql").joinpath("pgmq.sql").read_text().encode())
        connection.execute("SELECT pgmq.create('peers')")
        connection.execute(_SEND, ([json.dumps({"number": number}) for number in range(total)],))


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(int(sys.argv[2]))
    else:
        enqueue(int(sys.argv[1]))
