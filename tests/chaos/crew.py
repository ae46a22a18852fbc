"""The worker processes of a run, from outside: started, killed, stopped, continued, and never left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tests.chaos.plan import WorkerOrder
from tests.chaos.worker import SKIPPED
from tests.eventually import HANG_S

_ROOT = Path(__file__).parents[2]
_TAIL_CHARACTERS = 3_000


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

    def __init__(self, order: WorkerOrder, *, size: int, directory: Path, rng: random.Random) -> None:
        self._order = order
        self._size = size
        self._directory = directory
        self._rng = rng
        self._members: list[Member] = []
        self._started = 0
        self.problems: list[str] = []

    def fill_up(self) -> None:
        """Start as many as are missing."""
        while sum(member.leaves_by is None for member in self._members) < self._size:
            self._start()

    def kill_one(self) -> str:
        """SIGKILL, also one that is stopped."""
        member = self._rng.choice(self._members)
        member.process.kill()
        member.process.wait()
        self._members.remove(member)
        return member.name

    def stop_one(self, seconds: float) -> str | None:
        """SIGSTOP for a time; `None` if nobody works."""
        working = [member for member in self._members if member.continues_at is None]
        if not working:
            return None
        member = self._rng.choice(working)
        member.process.send_signal(signal.SIGSTOP)
        member.continues_at = time.monotonic() + seconds
        return member.name

    def ask_one_to_leave(self) -> str:
        """SIGTERM: it finishes what it has begun and hands back the rest."""
        member = self._rng.choice(self._members)
        self._ask_to_leave(member)
        return member.name

    def look_after(self) -> None:
        """Continue who was stopped long enough, and note whoever ended without being told."""
        now = time.monotonic()
        for member in list(self._members):
            if member.continues_at is not None and now >= member.continues_at:
                self._go_on(member)
            status = member.process.poll()
            if status is not None:
                self._members.remove(member)
                # SIGTERM may come before the worker is ready to leave in peace: then it has not begun.
                if member.leaves_by is None or status not in (0, -signal.SIGTERM):
                    self._complain(member, f"ended by itself with status {status}")
            elif member.leaves_by is not None and now > member.leaves_by:
                self._complain(member, f"did not leave within {HANG_S:.0f} s of SIGTERM")
                member.process.kill()

    def go_on(self) -> None:
        """Continue everybody."""
        for member in self._members:
            self._go_on(member)

    def leave(self) -> None:
        """Have everybody leave in peace."""
        for member in self._members:
            self._ask_to_leave(member)
        while self._members:
            self.look_after()
            time.sleep(0.02)

    def skipped(self) -> int:
        """How often a worker found in the inbox what it was to handle."""
        return sum(path.read_text().count(SKIPPED) for path in self._directory.glob("*.log"))

    def tails(self) -> Iterator[str]:
        """The last words of those who were there last."""
        for path in sorted(self._directory.glob("*.log"), key=os.path.getmtime)[-self._size :]:
            yield f"--- {path.name}\n{_tail(path)}"

    def _start(self) -> None:
        self._started += 1
        name = f"worker-{self._started:03}"
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", replace(self._order, name=name).encode()],
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
        for member in self._members:
            member.process.kill()
        for member in self._members:
            with suppress(OSError):
                assert member.process.stdin is not None
                member.process.stdin.close()
            member.process.wait()


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_TAIL_CHARACTERS:]
