"""Presence: a drain's heartbeat under its consumer's name, by which other drains know whether it is alive."""

from __future__ import annotations

import functools
import logging
import os
import threading
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

    A thread renews it: a handler may run for any time. A name that was not renewed for `claim_idle_ms`
    counts as dead, and the next drain takes over what is pending there.

    Raises:
        ConsumerBusyError: another drain lives under this name.
    """

    def __init__(self, queue: RedisStreamsQueue) -> None:
        self.queue = queue
        self._config = queue.config
        self._instance = uuid.uuid4().hex
        self._has_left = threading.Event()
        self._thread = threading.Thread(
            target=self._renew, name=f"conquiet-heartbeat-{queue.config.consumer_name}", daemon=True
        )
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

    def leave(self) -> Elsewhere:
        """End it, and return what is pending at other consumers."""
        self._has_left.set()
        # Else a heartbeat that is on its way would bring the name back.
        self._thread.join()
        return self._forget(self._config.consumer_name, self._instance)

    def forget(self, consumer: str) -> None:
        """Forget a dead consumer, unless something is still pending there."""
        self._forget(consumer, "")

    def __enter__(self) -> Self:
        _instances.add(self._instance)
        try:
            self.dead = self._join()
            self._thread.start()
        except BaseException:
            _instances.discard(self._instance)
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

    def _forget(self, consumer: str, instance: str) -> Elsewhere:
        config = self._config
        with visible_errors("leave", stream=config.stream_key, group=config.consumer_group):
            return scripts.leave(self.queue.client, config, consumer, instance)

    def _renew(self) -> None:
        config = self._config
        while not self._has_left.wait(config.claim_idle_ms / 3000):
            try:
                joined = self._call_join()
            except ConquietError as error:
                text = "consumer %r of stream %r could not renew its heartbeat: %s"
                _log.warning(text, config.consumer_name, config.stream_key, error)
                continue
            if isinstance(joined, Busy):
                text = "consumer %r of stream %r was taken for dead: another drain has its name now"
                _log.warning(text, config.consumer_name, config.stream_key)
                return


@functools.lru_cache(maxsize=2)
def _this_process(pid: int) -> str:
    """A name for this process that only it has, or "-" where the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return "-"
    return f"{boot}:{namespace}:{pid}:{_started(pid)}"


def _started(pid: int) -> str | None:
    """When the process was started, `None` if it is not there: a later one may have its number."""
    try:
        # After the name in brackets, which may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _is_dead(busy: Busy) -> bool:
    """Whether the process is known to be gone: only in the container, or on the machine, where it ran."""
    place, _, started = busy.process.rpartition(":")
    own_place, _, own_started = _this_process(os.getpid()).rpartition(":")
    if not place or place.rpartition(":")[0] != own_place.rpartition(":")[0]:
        return False
    if (place, started) == (own_place, own_started):
        return busy.instance not in _instances
    return _started(int(place.rpartition(":")[2])) != started
