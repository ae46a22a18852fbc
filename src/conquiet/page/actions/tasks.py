"""Tasks: retry dead letters, purge them, revoke; pause and resume queues; stop workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from conquiet.page.actions.action import Action, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.actions.letters import asked_at
from conquiet.page.commands import command, ids_of
from conquiet.page.query import Query, address
from conquiet.page.site import Site

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp

_MOST_COUNTED = 1_000


def _of(site: Site) -> dict[str, object]:
    """Options that every command on tasks has."""
    namespace = site.settings.namespace
    return {} if namespace == "tasks" else {"namespace": namespace}


def _which(query: Query) -> dict[str, Any]:
    given = {"error_type": query.text("error_type"), "task": query.text("task")}
    return {name: value for name, value in given.items() if value is not None}


def _plan_retry(site: Site, query: Query) -> Plan:
    queue, ids, which, rate = query.needed("queue"), query.all("id"), _which(query), query.rate("per_second")
    before = asked_at(site, query)
    options: dict[str, object] = {**_of(site), "queue": queue, "yes": True}
    if not ids:
        options |= {"all": True, **which, "per_second": query.text("per_second")}

    def preview() -> Preview:
        if ids:
            return Preview(len(ids), f"{len(ids):,} tasks would be enqueued again, each with a new id.")
        report = site.app.control.retry_all(queue=queue, dry_run=True, limit=_MOST_COUNTED, **which)
        more = " or more" if len(report.retried) == _MOST_COUNTED else ""
        text = f"{len(report.retried):,}{more} tasks would be enqueued again, each with a new id."
        if report.refused:
            text += f" {len(report.refused):,} cannot be: {report.refused[0][1]}."
        return Preview(len(report.retried), text, is_possible=bool(report.retried))

    def run(progress: Progress) -> Done:
        return _retry(
            site.app, queue, ids or _waiting(site.app, queue, which | {"until_ms": before}), rate, progress
        )

    return Plan(
        question=f"Retry {f'{len(ids):,} tasks' if ids else 'all dead letters that match'} of queue {queue}?",
        verb="Retry",
        subject=f"queue {queue}",
        command=command("tasks", "retry", *ids_of(ids), **options),
        back=address("/queue", {"name": queue, "where": "dead_lettered"}),
        hidden=() if ids else (("before", str(before)),),
        options=()
        if ids
        else (
            (
                "per_second",
                "At most so many per second",
                query.text("per_second") or "",
                "as fast as it goes",
            ),
        ),
        preview=preview,
        run=run,
    )


def _waiting(app: TaskApp, queue: str, which: dict[str, Any]) -> Iterator[str]:
    """The letters that are there now."""
    from conquiet.tasks.control.letters import matching_letters

    return (letter.id for letter in matching_letters(app.client, app.keys(queue), **which))


def _retry(app: TaskApp, queue: str, ids: Any, per_second: float | None, progress: Progress) -> Done:
    from conquiet.tasks import DeadLetterError

    began, refused, last = time.monotonic(), list[str](), ""
    for number, name in enumerate(ids):
        wait_s = 0.0 if per_second is None else began + number / per_second - time.monotonic()
        if progress.is_stopping or (wait_s > 0 and progress.wait(wait_s)):
            break
        try:
            last = app.control.retry(name, queue=queue)
            progress.count += 1
        except DeadLetterError as error:
            refused.append(f"{name}: {error.reason}")
    text = f"Enqueued {progress.count:,} tasks again"
    text += f", as {last}" if progress.count == 1 else ""
    text += f"; {len(refused):,} cannot be, {refused[0]}" if refused else ""
    return Done(progress.count, text + ".", has_refused=bool(refused))


def _plan_purge(site: Site, query: Query) -> Plan:
    queue, ids, before = query.needed("queue"), query.all("id"), asked_at(site, query)
    options: dict[str, object] = {**_of(site), "queue": queue, "all": not ids, "yes": True}

    def preview() -> Preview:
        count = len(ids) or site.app.control.queue(queue).dead_letters
        return Preview(count, f"{count:,} dead letters would be deleted for good.", is_possible=count > 0)

    def run(progress: Progress) -> Done:
        # Those that come after the question are left.
        older_than_ms = None if ids else max(0, site.now_ms() - before)
        progress.count = site.app.control.purge(ids or None, queue=queue, older_than_ms=older_than_ms)
        return Done(progress.count, f"Deleted {progress.count:,} dead letters for good.")

    return Plan(
        question=f"Delete {f'{len(ids):,}' if ids else 'all'} dead letters of queue {queue} for good?",
        verb="Delete for good",
        subject=f"queue {queue}",
        command=command("tasks", "purge", *ids_of(ids), **options),
        back=address("/queue", {"name": queue}),
        destroys=True,
        hidden=() if ids else (("before", str(before)),),
        preview=preview,
        run=run,
    )


def _plan_revoke(site: Site, query: Query) -> Plan:
    queue, ids, terminate = query.needed("queue"), query.all("id"), query.flag("terminate")

    def run(progress: Progress) -> Done:
        for task_id in ids:
            done = site.app.control.revoke(task_id, queue=queue, terminate=terminate)
            progress.count += done.is_revoked
        had_ended = len(ids) - progress.count
        text = f"Revoked {progress.count:,} tasks" + (f"; {had_ended:,} had ended." if had_ended else ".")
        return Done(progress.count, text)

    how = "raises TaskRevokedError in it" if terminate else "one that runs goes on to its end"
    return Plan(
        question=f"Revoke {'task ' + ids[0] if len(ids) == 1 else f'{len(ids):,} tasks'} of queue {queue}?",
        verb="Revoke",
        subject=f"queue {queue}",
        command=command(
            "tasks", "revoke", *ids_of(ids), **_of(site), queue=queue, terminate=terminate, yes=True
        ),
        back=address("/task", {"queue": queue, "id": ids[0] if ids else ""}),
        destroys=True,
        preview=lambda: Preview(len(ids), f"It will not run, nor be tried again; {how}.", bool(ids)),
        run=run,
    )


def _plan_pause(site: Site, query: Query) -> Plan:
    queue, is_paused = query.needed("queue"), query.flag("paused")
    verb = "pause" if is_paused else "resume"

    def run(progress: Progress) -> Done:
        control = site.app.control
        answers = control.pause(queue) if is_paused else control.resume(queue)
        progress.count = sum(answer is not None for answer in answers.values())
        return Done(
            progress.count, f"Queue {queue} is {verb}d; {progress.count:,} worker processes have answered."
        )

    effect = "no worker begins a further task of it; those that run go on" if is_paused else "workers go on"
    return Plan(
        question=f"{verb.capitalize()} queue {queue}?",
        verb=verb.capitalize(),
        subject=f"queue {queue}",
        command=command("workers", verb, queue, **_of(site)),
        back=address("/queue", {"name": queue}),
        preview=lambda: Preview(1, f"From then on {effect}."),
        run=run,
    )


def _plan_stop(site: Site, query: Query) -> Plan:
    names, hard = query.all("worker"), query.flag("hard")

    def run(progress: Progress) -> Done:
        answers = site.app.control.shutdown(names, hard=hard)
        progress.count = sum(answer is not None for answer in answers.values())
        return Done(progress.count, f"{progress.count:,} of {len(names):,} workers have answered, and end.")

    return Plan(
        question=f"Stop {', '.join(names)}?",
        verb="Stop",
        subject="workers",
        command=command("workers", "stop", *names, **_of(site), hard=hard, yes=True),
        back="/workers",
        destroys=True,
        preview=lambda: Preview(
            len(names),
            "Ends after the tasks that run; what it has read and not begun is free for others.",
            bool(names),
        ),
        run=run,
    )


ACTIONS = (
    Action("retry-tasks", _plan_retry),
    Action("purge-tasks", _plan_purge),
    Action("revoke", _plan_revoke),
    Action("pause", _plan_pause),
    Action("stop-workers", _plan_stop),
)
