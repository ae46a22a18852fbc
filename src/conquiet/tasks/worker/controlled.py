"""What control sees of a process: the loops that run tasks, or the parent of such processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.queue import open_client
from conquiet.tasks.app import TaskApp
from conquiet.tasks.control import WorkerDescription
from conquiet.tasks.control.listener import Controlled, ControlListener
from conquiet.tasks.errors import HardStopError, TaskRevokedError
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.loop import ConsumerLoop

#: After a hard stop a child has this time to hand back what it runs.
_KILL_AFTER_S = 30.0


def control_listener(
    app: TaskApp, config: WorkerConfig, controlled: Controlled, parent: str | None = None
) -> ControlListener:
    """What listens for the commands that are broadcast to all workers, and answers for this process.

    Args:
        parent: the name of the worker whose child process this is.
    """
    description = WorkerDescription(
        name=config.name,
        queues=config.queues,
        pool=config.pool,
        concurrency=config.concurrency if parent is None else 1,
        parent=parent,
    )
    client = open_client(app.settings.redis_url)
    return ControlListener(client, app.namespace, description, controlled, config.lease_ms)


class ControlledLoops:
    """The loops of one process; called by the thread of its `ControlListener`."""

    def __init__(self, loops: Sequence[ConsumerLoop], stop: Callable[[], None]) -> None:
        self._loops = loops
        self._stop = stop

    def inspect(self) -> dict[str, Any]:
        """As `Controlled.inspect`."""
        active, reserved = [], []
        for loop in self._loops:
            running, channel = loop.running, loop.channel
            if running is not None:
                msg = running[0]
                active.append(
                    {
                        "id": msg.id,
                        "name": msg.envelope.name,
                        "queue": msg.place.keys.queue,
                        "attempt": msg.delivery_count - 1,
                        "started_ms": msg.started_ms,
                    }
                )
            if channel is not None:
                reserved += [
                    {"id": msg.id, "name": msg.envelope.name, "queue": msg.place.keys.queue}
                    for msg in channel.reserved.messages()
                ]
        return {"active": active, "reserved": reserved}

    def look_again(self) -> None:
        """As `Controlled.look_again`."""
        for loop in self._loops:
            if (channel := loop.channel) is not None:
                channel.admission.look_again()

    def interrupt(self, task_id: str) -> bool:
        """As `Controlled.interrupt`; the id may be that of the canvas which a task belongs to."""
        has_found = False
        for loop in self._loops:
            running = loop.running
            wanted = running[0].id if running is not None and running[0].canvas == task_id else task_id
            has_found |= loop.interrupt(wanted, TaskRevokedError(wanted))
        return has_found

    def shutdown(self, *, hard: bool) -> None:
        """As `Controlled.shutdown`; a hard one hands back what runs, as no attempt."""
        self._stop()
        for loop in self._loops if hard else ():
            if (running := loop.running) is not None:
                loop.interrupt(running[0].id, HardStopError())


class ControlledProcesses:
    """The parent of a process pool: its children see to their tasks themselves, it ends them."""

    def __init__(self, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        self._stop = stop
        self._kill = kill

    def inspect(self) -> dict[str, Any]:
        """As `Controlled.inspect`; the children say what they run."""
        return {"active": [], "reserved": []}

    def look_again(self) -> None:
        """Nothing: it reads no tasks."""

    def interrupt(self, _task_id: str) -> bool:
        """It runs none."""
        return False

    def shutdown(self, *, hard: bool) -> None:
        """As `Controlled.shutdown`; a child that does not see its interruption is killed."""
        self._stop()
        if hard:
            timer = threading.Timer(_KILL_AFTER_S, self._kill)
            timer.daemon = True
            timer.start()
