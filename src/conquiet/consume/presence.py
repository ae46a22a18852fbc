"""Presence: a drain's heartbeat under its consumer's name, by which other drains know whether it is alive."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from conquiet.consume import scripts
from conquiet.consume.report import Elsewhere
from conquiet.consume.scripts import Busy
from conquiet.errors import ConquietError, ConsumerBusyError
from conquiet.queue import RedisStreamsQueue
from conquiet.queue.connection import visible_errors

_log = logging.getLogger(__name__)

#: Instances that live in this process.
_instances: set[str] = set()


class Presence:
    """The drain lives under its consumer's name from the start of a `with` block to its end.

    After a while a thread renews it: a handler may run for any time. A name that was not renewed for
    `claim_idle_ms` counts as dead, and the next drain takes over what is pending there.

    Raises:
        ConsumerBusyError: another drain lives under this name.
    """

    def __init__(self, queue: RedisStreamsQueue) -> None:
        self.queue = queue
        self._config = queue.config
        self._instance = uuid.uuid4().hex
        self._has_left = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._renew_every_s = queue.config.claim_idle_ms / 3000
        #: Whether another drain lives under the name now: this one was taken for dead.
        self.is_lost = False
        #: Consumers that died before this one began, with whatever is pending there.
        self.dead: list[str] = []

    def check(self) -> None:
        """Renew the heartbeat after a long time: this process may have been frozen.

        Raises:
            ConsumerBusyError: another drain lives under the name now, and has this one's messages.
        """
        self._join()

    def start_renewing(self) -> None:
        """Renew it from now on, in a thread."""
        name = f"conquiet-heartbeat-{self._config.consumer_name}"
        with self._lock:
            if not self._has_left.is_set():
                thread = threading.Thread(target=self._renew, name=name, daemon=True)
                thread.start()
                self._thread = thread

    def leave(self, left: int = 0) -> Elsewhere:
        """End it, and return what is pending at other consumers.

        Args:
            left: how many messages the drain knows to be pending under its name. If there are others, as
                after a read whose reply was lost, the next drain takes them all over.
        """
        with self._lock:
            self._has_left.set()
        _starter.forget(self)
        if self._thread is not None:
            # Else a heartbeat that is on its way would bring the name back.
            self._thread.join()
        return self._forget(self._config.consumer_name, self._instance, left)

    def forget(self, consumer: str) -> None:
        """Forget a dead consumer, unless something is still pending there, or it is alive again."""
        self._forget(consumer, "expired" if consumer in self.dead else "")

    def __enter__(self) -> Self:
        _instances.add(self._instance)
        try:
            self.dead = self._join()
            _starter.add(self, self._renew_every_s)
        except BaseException:
            _instances.discard(self._instance)
            with self._lock:
                self._has_left.set()
            _starter.forget(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _instances.discard(self._instance)
        if self._has_left.is_set():
            return
        try:
            self.leave()
        except ConquietError as also:
            if error is None:
                raise
            error.add_note(f"and the name {self._config.consumer_name!r} stays in its group: {also}")

    def _join(self) -> list[str]:
        joined = self._call_join()
        if isinstance(joined, Busy) and _is_dead(joined):
            joined = self._call_join(replaces=joined.instance)
        if isinstance(joined, Busy):
            config, self.is_lost = self._config, True
            raise ConsumerBusyError(
                config.consumer_name,
                stream=config.stream_key,
                group=config.consumer_group,
                free_in_s=joined.free_in_ms / 1000,
            )
        return joined

    def _call_join(self, replaces: str = "") -> list[str] | Busy:
        config = self._config
        with visible_errors("heartbeat", stream=config.stream_key, group=config.consumer_group):
            return scripts.join(
                self.queue.client,
                config,
                self._instance,
                _this_process(os.getpid()),
                ttl_ms=config.claim_idle_ms,
                replaces=replaces,
            )

    def _forget(self, consumer: str, instance: str, left: int = 0) -> Elsewhere:
        config = self._config
        with visible_errors("leave", stream=config.stream_key, group=config.consumer_group):
            return scripts.leave(self.queue.client, config, consumer, instance, left)

    def _renew(self) -> None:
        config = self._config
        while not self._has_left.is_set():
            try:
                joined = self._call_join()
            except ConquietError as error:
                text = "consumer %r of stream %r could not renew its heartbeat: %s"
                _log.warning(text, config.consumer_name, config.stream_key, error)
            else:
                if isinstance(joined, Busy) and not self.is_lost:
                    text = "consumer %r of stream %r was taken for dead: another drain has its name now"
                    _log.warning(text, config.consumer_name, config.stream_key)
                self.is_lost = isinstance(joined, Busy)
            self._has_left.wait(self._renew_every_s)


class _Starter:
    """Starts the thread of each heartbeat when it is due: most drains end before, and a thread costs them."""

    def __init__(self) -> None:
        #: When each is due, in monotonic time.
        self._due: dict[Presence, float] = {}
        self._thread: threading.Thread | None = None
        self._next_look = 0.0
        self._is_earlier = threading.Event()
        self._lock = threading.Lock()

    def add(self, presence: Presence, after_s: float) -> None:
        at = time.monotonic() + after_s
        self._due[presence] = at
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    thread = threading.Thread(target=self._run, name="conquiet-heartbeats", daemon=True)
                    thread.start()
                    self._thread = thread
        elif at < self._next_look:
            self._is_earlier.set()

    def forget(self, presence: Presence) -> None:
        self._due.pop(presence, None)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            for presence, at in list(self._due.items()):
                if at <= now and self._due.pop(presence, None) is not None:
                    try:
                        presence.start_renewing()
                    except RuntimeError as error:
                        # No thread can be started now; it is tried again.
                        _log.warning("a heartbeat could not be started: %s", error)
                        self._due[presence] = now + 1.0
            # Once a second even without any: nobody wakes this thread for one that is due later than that.
            self._next_look = min([now + 1.0, *self._due.values()])
            self._is_earlier.wait(max(0.0, self._next_look - time.monotonic()))
            self._is_earlier.clear()


_starter = _Starter()


def _start_anew() -> None:
    # A forked child has the memory of its parent, and none of its threads.
    global _starter
    _starter = _Starter()
    _instances.clear()


os.register_at_fork(after_in_child=_start_anew)


@functools.lru_cache(maxsize=2)
def _this_process(pid: int) -> str:
    """A name for this process that only it has, or "-" where the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        return f"{boot}:{namespace}:{pid}:{_state_and_start(pid)[1]}"
    except OSError:
        return "-"


def _state_and_start(pid: int) -> tuple[str, str]:
    """The state of a process and when it was started: a later one may have its number."""
    # After the name in brackets, which may contain anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def _is_dead(busy: Busy) -> bool:
    """Whether the process is known to be gone: only in the container, or on the machine, where it ran."""
    place, _, started = busy.process.rpartition(":")
    own_place, _, own_started = _this_process(os.getpid()).rpartition(":")
    if not place or place.rpartition(":")[0] != own_place.rpartition(":")[0]:
        return False
    if (place, started) == (own_place, own_started):
        return busy.instance not in _instances
    try:
        pid = int(place.rpartition(":")[2])
        os.kill(pid, 0)
        state, other_started = _state_and_start(pid)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError, IndexError):
        # It is there, and not for this user to look at; or what it wrote is no process of this version.
        return False
    return state == "Z" or other_started != started
