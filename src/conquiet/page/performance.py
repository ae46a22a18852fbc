"""Performance: does what an operator confirmed; nothing is changed that is not in the audit stream before."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from conquiet.errors import text_of
from conquiet.masking import mask
from conquiet.operations import AuditEntry
from conquiet.page.actions.action import Action
from conquiet.page.actions.jobs import Done, Job, Progress
from conquiet.page.identity import User
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.queue.message import is_entry_id

#: So long a request waits for its action; one that takes longer goes on behind the page.
_WAIT_S = 2.0
#: Questions whose answers are known: an answer that comes twice is done once.
_ANSWERED = 1_000


@dataclass(frozen=True, slots=True)
class Shown:
    """A job as the page shows it; "begun" is one that this process does not know."""

    id: str
    title: str
    state: str
    text: str
    count: int


class Performance:
    """The actions of one page."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._answered: OrderedDict[str, tuple[Job, str]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, action: Action, form: Query, user: User) -> str:
        """Write the audit entry, then begin; returns the address that shows what came of it.

        Raises:
            TooManyJobsError: many actions run already; nothing was done.
            QueueError: the audit stream cannot be written; nothing was done.
        """
        question = form.text("question") or ""
        with self._lock:
            # A second click, or the form of a page that the browser went back to.
            answered = self._answered.get(question)
            if answered is None:
                answered = self._start(action, form, user)
                if question:
                    self._answered[question] = answered
                while len(self._answered) > _ANSWERED:
                    self._answered.popitem(last=False)
        job, address = answered
        job.has_ended.wait(_WAIT_S)
        return address

    def stop(self, job_id: str, user: User) -> None:
        """Have a job end after the message that it is at.

        Raises:
            ValueError: it has ended, or another process of the page does it.
            QueueError: the audit stream cannot be written; it goes on.
        """
        job = self._site.jobs.find(job_id)
        if job is None or job.state != "running":
            raise ValueError("this action has ended, or another process of the page does it")
        detail = f"asked to stop: {job.title} (begun as {job_id})"
        stopped = AuditEntry(user=user.name, action="stop", subject=job.title, outcome="done", detail=detail)
        self._site.audit.write(stopped)
        job.progress.stop()

    def find(self, job_id: str) -> Shown | None:
        """A job of this process; of another one, what the audit stream says."""
        job = self._site.jobs.find(job_id)
        if job is not None:
            return Shown(job.id, job.title, job.state, mask(job.text), job.progress.count)
        last = self._site.audit.last_step(job_id) if is_entry_id(job_id) else None
        if last is None:
            return None
        return Shown(job_id, f"{last.action} of {last.subject}", last.outcome, last.detail, last.count or 0)

    def _start(self, action: Action, form: Query, user: User) -> tuple[Job, str]:
        plan = action.plan(self._site, form)
        self._site.jobs.check_room()
        entry = AuditEntry(
            user=user.name, action=action.name, subject=plan.subject, outcome="begun", command=plan.command
        )
        began = self._site.audit.write(entry)

        def end(progress: Progress, result: Done | Exception) -> None:
            if isinstance(result, Exception):
                step = replace(entry, outcome="failed", count=progress.count, detail=mask(text_of(result)))
            else:
                step = replace(
                    entry,
                    outcome="stopped" if progress.is_stopping else "done",
                    count=result.count,
                    detail=mask(result.text),
                )
            self._site.audit.write(replace(step, began=began))

        job = self._site.jobs.start(began, plan.question, plan.run, end)
        separator = "&" if "?" in plan.back else "?"
        return job, f"{plan.back}{separator}done={began}"
