"""A program: the first try of a DrainSensor, killed with SIGKILL at its fifth message."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from airflow_provider_conquiet.sensors.drain import DrainSensor
from conquiet import DbSession, QueueMessage
from tests.with_airflow.handlers import record

FATAL = 4

_leave = DbSession.__exit__
_handled: list[int] = []


def die_in_the_handler(msg: QueueMessage, session: DbSession) -> None:
    """Die after the effect, before its commit."""
    record(msg, session)
    if msg.payload["number"] == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)


def note_and_record(msg: QueueMessage, session: DbSession) -> None:
    """Write the effect and remember whose it is."""
    record(msg, session)
    _handled.append(msg.payload["number"])


def die_after_the_commit(session: DbSession, *error: Any) -> None:
    """Die after the commit of the fatal message, before anything else."""
    _leave(session, *error)
    if FATAL in _handled:
        os.kill(os.getpid(), signal.SIGKILL)


def main(stream: str, moment: str) -> None:
    """Poke once and die."""
    handler = die_in_the_handler
    if moment == "after_the_commit":
        DbSession.__exit__ = die_after_the_commit  # type: ignore[method-assign]
        handler = note_and_record
    sensor = DrainSensor(
        task_id="wait", stream=stream, group="billing", handler=handler, count=10, idle_ms=20
    )
    ti = SimpleNamespace(dag_id="dag", task_id="sensor", map_index=-1, run_id="run-1", try_number=1)
    sensor.poke({"ti": ti})  # type: ignore[typeddict-item]


if __name__ == "__main__":
    main(*sys.argv[1:])
