"""ControlListener: a worker's thread that reads what control asks, and answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from conquiet.errors import ConquietError
from conquiet.queue.connection import Client
from conquiet.tasks.control.broadcast import Broadcast, Request
from conquiet.tasks.control.workers import WorkerDescription
from conquiet.tasks.keys import workers_key
from conquiet.tasks.scripts import control as scripts

_log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 1.0
_TRY_AGAIN_S = 0.5


class Controlled(Protocol):
    """A worker, as its listener sees it; called by the listener's thread."""

    def inspect(self) -> Mapping[str, Any]:
        """What it runs and has reserved."""

    def look_again(self) -> None:
        """Something has changed in Redis: look before another task begins."""

    def interrupt(self, task_id: str) -> bool:
        """Raise `TaskRevokedError` inside of the task if it runs here."""

    def shutdown(self, *, hard: bool) -> None:
        """End, without waiting for it."""


class ControlListener:
    """Reads the broadcast from its own position; lives as long as its worker, and keeps it registered."""

    def __init__(
        self, client: Client, namespace: str, description: WorkerDescription, worker: Controlled, ttl_ms: int
    ) -> None:
        self._client = client
        self._workers = workers_key(namespace)
        self._description = description
        self._worker = worker
        self._ttl_ms = ttl_ms
        self._broadcast = Broadcast(client, namespace)
        self._position: str | None = None
        self._next_beat = 0.0
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="conquiet-control", daemon=True)

    def start(self) -> None:
        """Begin, in a thread; what is asked from now on is answered."""
        try:
            self._position = self._broadcast.position()
            self._register()
        except ConquietError as error:
            self._report(error)
        self._thread.start()

    def stop(self) -> None:
        """Leave; the thread ends when its read does."""
        with self._lock:
            self._has_ended.set()
            try:
                scripts.register_worker(self._client, self._workers, self._description.encode(), 0)
            except ConquietError as error:
                self._report(error)

    def _run(self) -> None:
        while not self._has_ended.is_set():
            try:
                if self._position is None:
                    self._position = self._broadcast.position()
                self._register()
                wait_s = min(_LONGEST_WAIT_S, self._ttl_ms / 4000)
                for position, request in self._broadcast.requests(self._position, wait_s):
                    self._position = position
                    if request is not None and not self._has_ended.is_set():
                        self._obey(request)
            except ConquietError as error:
                if not self._has_ended.is_set():
                    self._report(error)
                    # Requests may have been missed.
                    self._worker.look_again()
                self._has_ended.wait(_TRY_AGAIN_S)
        # `stop` may be in the middle of a call.
        with self._lock:
            self._client.close()

    def _register(self) -> None:
        with self._lock:
            if not self._has_ended.is_set() and time.monotonic() >= self._next_beat:
                text = self._description.encode()
                scripts.register_worker(self._client, self._workers, text, self._ttl_ms)
                self._next_beat = time.monotonic() + self._ttl_ms / 2000

    def _obey(self, request: Request) -> None:
        me = self._description
        if not request.is_for(me.name, me.parent):
            return
        facts: Mapping[str, Any] = {}
        match request.command:
            case "ping":
                facts = {"pid": me.pid, "host": me.host}
            case "inspect":
                facts = self._worker.inspect()
            case "look":
                self._worker.look_again()
            case "revoke":
                self._worker.look_again()
                if request.facts.get("terminate") is True:
                    self._worker.interrupt(str(request.facts.get("task_id")))
                return
            case "shutdown":
                is_hard = request.facts.get("hard") is True
                # A child is ended by its worker, which answers.
                if me.parent is None:
                    self._broadcast.answer(request.id, me.name, {"hard": is_hard})
                self._worker.shutdown(hard=is_hard)
                return
            case command:
                _log.warning("worker %s does not know the command %r", me.name, command)
                facts = {"error": f"unknown command {command}"}
        self._broadcast.answer(request.id, me.name, facts)

    def _report(self, error: ConquietError) -> None:
        _log.warning("worker %s cannot be controlled now: %s", self._description.name, error)
