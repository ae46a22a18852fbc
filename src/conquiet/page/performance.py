"""Performance: does what an operator confirmed; nothing is changed that is not in the audit stream before."""

from __future__ import annotations

from dataclasses import dataclass

from conquiet.errors import text_of
from conquiet.masking import mask
from conquiet.operations import AuditEntry
from conquiet.page.actions.action import Action, Plan
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.identity import User
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.queue.message import is_entry_id

#: So long a request waits for its action; one that takes longer goes on behind the page.
_WAIT_S = 2.0
#: Audit entries among which the end of an action is looked for.
_SEARCHED = 50


@dataclass(frozen=True, slots=True)
class Shown:
    """A job as the page shows it."""

    id: str
    title: str
    state: str
    text: str
    count: int


class Performance:
    """The actions of one page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def begin(self, action: Action, form: Query, user: User) -> str:
        """Write the audit entry, then begin; returns the address that shows what came of it.

        Raises:
            TooManyJobsError: many actions run already; nothing was done.
            QueueError: the audit stream cannot be written; nothing was done.
        """
        plan = action.plan(self._site, form)
        self._site.jobs.check_room()
        entry = AuditEntry(
            user=user.name, action=action.name, subject=plan.subject, outcome="begun", command=plan.command
        )
        began = self._site.audit.write(entry)

        def end(progress: Progress, result: Done | Exception) -> None:
            self._site.audit.write(_last_step(entry, began, progress, result))

        job = self._site.jobs.start(began, plan.question, plan.run, end)
        job.has_ended.wait(_WAIT_S)
        return _with_done(plan, began)

    def stop(self, job_id: str) -> None:
        """Have a job end after the message that it is at.

        Raises:
            ValueError: it is not known, or has ended.
        """
        job = self._site.jobs.find(job_id)
        if job is None or job.state != "running":
            raise ValueError("this action has ended")
        job.progress.stop()

    def find(self, job_id: str) -> Shown | None:
        """A job of this process; of an earlier one, what the audit stream says."""
        job = self._site.jobs.find(job_id)
        if job is not None:
            return Shown(job.id, job.title, job.state, mask(job.text), job.progress.count)
        if not is_entry_id(job_id):
            return None
        last = [one for one in self._site.audit.last(_SEARCHED) if job_id in (one.id, one.began)]
        if not last:
            return None
        # Another process of the page does it, or did.
        state = "running" if last[0].outcome == "begun" else last[0].outcome
        title = f"{last[0].action} of {last[0].subject}"
        return Shown(job_id, title, state, last[0].detail, last[0].count or 0)


def _last_step(entry: AuditEntry, began: str, progress: Progress, result: Done | Exception) -> AuditEntry:
    is_error = isinstance(result, Exception)
    outcome = "failed" if is_error else "stopped" if progress.is_stopping else "done"
    return AuditEntry(
        user=entry.user,
        action=entry.action,
        subject=entry.subject,
        command=entry.command,
        began=began,
        outcome=outcome,  # type: ignore[arg-type]  # one of them
        count=progress.count if isinstance(result, Exception) else result.count,
        detail=mask(text_of(result) if isinstance(result, Exception) else result.text),
    )


def _with_done(plan: Plan, began: str) -> str:
    separator = "&" if "?" in plan.back else "?"
    return f"{plan.back}{separator}done={began}"
