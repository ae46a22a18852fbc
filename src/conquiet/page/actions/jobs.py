"""Jobs: actions that run, in threads of their own, since a replay with a rate may take an hour."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

#: Jobs that have ended and are still shown.
_KEPT = 200
#: Jobs that run at once.
_MOST = 8


class TooManyJobsError(Exception):
    """So many actions run already that no further one is begun."""


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did."""

    count: int
    #: In a sentence.
    text: str
    #: Whether something could not be done, and stayed as it was.
    has_refused: bool = False


class Progress:
    """How far a job is, and whether it is to stop."""

    def __init__(self) -> None:
        self.count = 0
        self._is_stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    def stop(self) -> None:
        self._is_stopping.set()

    def wait(self, seconds: float) -> bool:
        """Wait; whether the job is to stop."""
        return self._is_stopping.wait(seconds)

    def paced(self, ids: Iterable[str], per_second: float | None) -> Iterator[str]:
        """The ids, as fast as they may be taken, until the job is to stop."""
        began = time.monotonic()
        for number, one in enumerate(ids):
            wait_s = 0.0 if per_second is None else began + number / per_second - time.monotonic()
            if self.is_stopping or (wait_s > 0 and self.wait(wait_s)):
                return
            yield one


Run = Callable[[Progress], Done]
#: Called with what came of it, or the error, before the job counts as ended.
End = Callable[[Progress, "Done | Exception"], None]


@dataclass
class Job:
    """One action that was begun."""

    id: str
    title: str
    progress: Progress = field(default_factory=Progress)
    state: Literal["running", "done", "failed", "stopped"] = "running"
    text: str = ""
    has_ended: threading.Event = field(default_factory=threading.Event, repr=False)


class Jobs:
    """The jobs of this process."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def check_room(self) -> None:
        """Refuse a further job while many run.

        Raises:
            TooManyJobsError: there are as many as may be.
        """
        if sum(job.state == "running" for job in list(self._jobs.values())) >= _MOST:
            raise TooManyJobsError(f"{_MOST} actions run already; wait for one of them, or stop it")

    def start(self, job_id: str, title: str, run: Run, end: End) -> Job:
        """Begin a job."""
        job = Job(job_id, title)
        with self._lock:
            self._jobs[job_id] = job
            for old in [key for key, one in self._jobs.items() if one.state != "running"][:-_KEPT]:
                del self._jobs[old]
        threading.Thread(
            target=self._run, args=(job, run, end), name=f"conquiet-page-{title}", daemon=True
        ).start()
        return job

    def find(self, job_id: str) -> Job | None:
        """A job of this process, `None` if it is not known any more."""
        return self._jobs.get(job_id)

    def stop(self) -> None:
        """Have all jobs end, and wait for that."""
        running = [job for job in list(self._jobs.values()) if job.state == "running"]
        for job in running:
            job.progress.stop()
        for job in running:
            job.has_ended.wait()

    @staticmethod
    def _run(job: Job, run: Run, end: End) -> None:
        result: Done | Exception
        try:
            result = run(job.progress)
        except Exception as error:  # noqa: BLE001 -- it is written to the audit stream, and shown
            result = error
        try:
            end(job.progress, result)
        except Exception as error:  # noqa: BLE001 -- the audit stream cannot be written: shown, too
            result = error
        if isinstance(result, Exception):
            job.text, job.state = f"{type(result).__name__}: {result}", "failed"
        else:
            job.text, job.state = result.text, "stopped" if job.progress.is_stopping else "done"
        job.has_ended.set()
