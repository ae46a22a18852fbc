"""The worker processes of a run, from outside: started, killed, stopped, continued, and never left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tests.chaos.children import Child, children_of
from tests.chaos.plan import WorkerOrder
from tests.eventually import HANG_S

_ROOT = Path(__file__).parents[2]
_TAIL_CHARACTERS = 3_000
#: In which a worker may be stopped at the wrong time.
_MOMENTS = 30


@dataclass(slots=True)
class Member:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    #: When to let a stopped one go on (monotonic).
    continues_at: float | None = None
    #: When one that was asked to leave must be gone (monotonic).
    leaves_by: float | None = None


class Crew:
    """The workers from the start of a `with` block to its end, where all of them are killed and reaped."""

    def __init__(
        self,
        order: WorkerOrder,
        *,
        size: int,
        directory: Path,
        rng: random.Random,
        may_kill_themselves: bool = False,
    ) -> None:
        self._order = order
        self._size = size
        self._directory = directory
        self._rng = rng
        self._may_kill_themselves = may_kill_themselves
        self._members: list[Member] = []
        #: Child processes of members that are stopped, and until when (monotonic).
        self._stopped: list[tuple[Child, float]] = []
        self._started = 0
        #: The names of those that were killed, or killed themselves.
        self.killed: set[str] = set()
        self.problems: list[str] = []

    def fill_up(self) -> None:
        """Start as many as are missing."""
        while sum(member.leaves_by is None for member in self._members) < self._size:
            self._start()

    def kill_one(self) -> None:
        """SIGKILL, also one that is stopped."""
        member = self._rng.choice(self._members)
        member.process.kill()
        member.process.wait()
        self._members.remove(member)
        self.killed.add(member.name)

    def stop_one(self, seconds: float, is_in_time: Callable[[str], bool] = lambda _name: True) -> bool:
        """SIGSTOP for a time, at a moment that suits, if one comes soon; whether somebody was stopped."""
        for _ in range(_MOMENTS):
            working = [member for member in self._members if member.continues_at is None]
            if not working:
                return False
            member = self._rng.choice(working)
            member.process.send_signal(signal.SIGSTOP)
            if is_in_time(member.name):
                member.continues_at = time.monotonic() + seconds
                return True
            self._go_on(member)
        return False

    def kill_child(self) -> bool:
        """SIGKILL to a process of somebody's pool; whether there was one."""
        child = self._any_child()
        if child is not None:
            child.send(signal.SIGKILL)
        return child is not None

    def stop_child(self, seconds: float) -> bool:
        """SIGSTOP to a process of somebody's pool for a time; whether there was one."""
        child = self._any_child()
        if child is not None:
            child.send(signal.SIGSTOP)
            self._stopped.append((child, time.monotonic() + seconds))
        return child is not None

    def ask_one_to_leave(self) -> None:
        """SIGTERM: it finishes what it has begun and hands back the rest."""
        self._ask_to_leave(self._rng.choice(self._members))

    def look_after(self) -> None:
        """Continue who was stopped long enough, and note whoever ended without being told."""
        now = time.monotonic()
        self._continue_children(now)
        for member in list(self._members):
            if member.continues_at is not None and now >= member.continues_at:
                self._go_on(member)
            status = member.process.poll()
            if status is not None:
                self._members.remove(member)
                # SIGTERM may come before the worker is ready to leave in peace: then it has not begun.
                is_asked = member.leaves_by is not None and status in (0, -signal.SIGTERM)
                if self._may_kill_themselves and status == -signal.SIGKILL:
                    self.killed.add(member.name)
                elif not is_asked:
                    self._complain(member, f"ended by itself with status {status}")
            elif member.leaves_by is not None and now > member.leaves_by:
                self._complain(member, f"did not leave within {HANG_S:.0f} s of SIGTERM")
                member.process.kill()

    def go_on(self) -> None:
        """Continue everybody."""
        self._continue_children(float("inf"))
        for member in self._members:
            self._go_on(member)

    def leave(self) -> None:
        """Have everybody leave in peace."""
        for member in self._members:
            self._ask_to_leave(member)
        while self._members:
            self.look_after()
            time.sleep(0.02)

    def count_logged(self, *texts: str) -> list[int]:
        """How often workers have logged each of these texts."""
        counts = [0] * len(texts)
        for path in self._directory.glob("*.log"):
            log = path.read_text(errors="replace")
            counts = [count + log.count(text) for count, text in zip(counts, texts, strict=True)]
        return counts

    def tails(self) -> Iterator[str]:
        """The last words of those who were there last."""
        for path in sorted(self._directory.glob("*.log"), key=os.path.getmtime)[-self._size :]:
            yield f"--- {path.name}\n{_tail(path)}"

    def _start(self) -> None:
        # By their numbers workers differ in what they are: one of each kind at a time.
        kinds = {int(one.name[-3:]) % self._size for one in self._members if one.leaves_by is None}
        self._started += 1
        while self._started % self._size in kinds:
            self._started += 1
        name = f"worker-{self._started:03}"
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", self._order.module, replace(self._order, name=name).encode()],
                cwd=_ROOT,
                # A shell that forbids bytecode makes every worker compile everything anew.
                env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
                # It ends when this pipe does, that is with this process, however that ends.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # A group of its own in the same session: no Ctrl-C comes here, and if this process dies while
                # the worker is stopped, the group is orphaned and the kernel sends it SIGHUP and SIGCONT.
                process_group=0,
            )
        self._members.append(Member(name, process, log))

    def _any_child(self) -> Child | None:
        children = [child for member in self._members for child in children_of(member.process.pid)]
        return self._rng.choice(children) if children else None

    def _continue_children(self, now: float) -> None:
        for child, _ in [one for one in self._stopped if now >= one[1]]:
            child.send(signal.SIGCONT)
        self._stopped = [one for one in self._stopped if now < one[1]]

    def _go_on(self, member: Member) -> None:
        member.continues_at = None
        member.process.send_signal(signal.SIGCONT)

    def _ask_to_leave(self, member: Member) -> None:
        self._go_on(member)
        member.process.terminate()
        member.leaves_by = member.leaves_by or time.monotonic() + HANG_S

    def _complain(self, member: Member, problem: str) -> None:
        self.problems.append(f"{member.name} {problem}\n{_tail(member.log)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._continue_children(float("inf"))
        for member in self._members:
            member.process.kill()
        for member in self._members:
            with suppress(OSError):
                assert member.process.stdin is not None
                member.process.stdin.close()
            member.process.wait()


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_TAIL_CHARACTERS:]
