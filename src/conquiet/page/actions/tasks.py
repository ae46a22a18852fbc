"""Tasks: retry dead letters, purge them, revoke; pause and resume queues; stop workers."""

from __future__ import annotations

from collections.abc import Iterable

from conquiet.page.actions.action import RATE_OPTION, Action, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.actions.letters import asked_at
from conquiet.page.commands import command
from conquiet.page.query import Query, address
from conquiet.page.site import Site


def plan_retry(site: Site, query: Query) -> Plan:
    """Enqueue the tasks of chosen dead letters again, or of all that match."""
    queue, ids, before = query.needed("queue"), query.chosen(), asked_at(site, query)
    rate = query.rate("per_second")
    options: dict[str, object] = {**site.command_options, "queue": queue, "yes": True}
    if not ids:
        options |= {"all": True, "until": before, "per_second": query.text("per_second")}

    def preview() -> Preview:
        if ids:
            there = [one for one in ids if site.app.control.letter(one, queue=queue) is not None]
            text = f"{len(there):,} tasks would be enqueued again, each with a new id."
            if len(there) < len(ids):
                text += f" {len(ids) - len(there):,} are not there any more."
            return Preview(len(there), text, is_possible=bool(there))
        count = site.app.control.queue(queue).dead_letters
        text = f"{count:,} tasks would be enqueued again, each with a new id; what contains no task stays."
        return Preview(count, text, is_possible=count > 0)

    def run(progress: Progress) -> Done:
        from conquiet.tasks import DeadLetterError
        from conquiet.tasks.control.letters import matching_letters

        app, refused, last = site.app, list[str](), ""
        names: Iterable[str] = ids
        if not ids:
            # Those that come after the question are left.
            letters = matching_letters(app.client, app.keys(queue), until_ms=before)
            names = (letter.id for letter in letters)
        for name in progress.paced(names, rate):
            try:
                last = app.control.retry(name, queue=queue)
                progress.count += 1
            except DeadLetterError as error:
                refused.append(f"{name}: {error.reason}")
        text = f"Enqueued {progress.count:,} tasks again"
        text += f", as {last}" if progress.count == 1 else ""
        text += f"; {len(refused):,} cannot be, {refused[0]}" if refused else ""
        return Done(progress.count, text + ".", has_refused=bool(refused))

    return Plan(
        question=f"Retry {f'{len(ids):,} tasks' if ids else 'all dead letters'} of queue {queue}?",
        verb="Retry",
        subject=f"queue {queue}",
        command=command("tasks", "retry", *ids, **options),
        back=address("/queue", {"name": queue, "where": "dead_lettered"}),
        hidden=() if ids else (("before", str(before)),),
        options=() if ids else (RATE_OPTION.with_value(query.text("per_second")),),
        preview=preview,
        run=run,
    )


def plan_purge(site: Site, query: Query) -> Plan:
    """Delete chosen dead letters, or all."""
    queue, ids, before = query.needed("queue"), query.chosen(), asked_at(site, query)
    options: dict[str, object] = {**site.command_options, "queue": queue, "all": not ids, "yes": True}
    options["until"] = None if ids else before

    def preview() -> Preview:
        control = site.app.control
        count = control.purge(ids, queue=queue, dry_run=True) if ids else control.queue(queue).dead_letters
        return Preview(count, f"{count:,} dead letters would be deleted for good.", is_possible=count > 0)

    def run(progress: Progress) -> Done:
        control = site.app.control
        # Those that come after the question are left.
        progress.count = (
            control.purge(ids, queue=queue) if ids else control.purge(queue=queue, until_ms=before)
        )
        return Done(progress.count, f"Deleted {progress.count:,} dead letters for good.")

    return Plan(
        question=f"Delete {f'{len(ids):,}' if ids else 'all'} dead letters of queue {queue} for good?",
        verb="Delete for good",
        subject=f"queue {queue}",
        command=command("tasks", "purge", *ids, **options),
        back=address("/queue", {"name": queue}),
        destroys=True,
        hidden=() if ids else (("before", str(before)),),
        preview=preview,
        run=run,
    )


def plan_revoke(site: Site, query: Query) -> Plan:
    """Have tasks not run, or interrupt them."""
    queue, ids, terminate = query.needed("queue"), query.chosen(), query.flag("terminate")

    def preview() -> Preview:
        states = [site.app.results.status(one, queue) for one in ids]
        open_ones = [status for status in states if status is None or not status.state.is_final]
        how = "raises TaskRevokedError in it" if terminate else "one that runs goes on to its end"
        text = f"{len(open_ones):,} would not run, nor be tried again; {how}."
        if len(open_ones) < len(ids):
            text += f" {len(ids) - len(open_ones):,} have ended, and stay as they are."
        return Preview(len(open_ones), text, is_possible=bool(open_ones))

    def run(progress: Progress) -> Done:
        for task_id in ids:
            done = site.app.control.revoke(task_id, queue=queue, terminate=terminate)
            progress.count += done.is_revoked
        had_ended = len(ids) - progress.count
        text = f"Revoked {progress.count:,} tasks" + (f"; {had_ended:,} had ended." if had_ended else ".")
        return Done(progress.count, text)

    options: dict[str, object] = {**site.command_options, "queue": queue, "terminate": terminate, "yes": True}
    return Plan(
        question=f"Revoke {'task ' + ids[0] if len(ids) == 1 else f'{len(ids):,} tasks'} of queue {queue}?",
        verb="Revoke",
        subject=f"queue {queue}",
        command=command("tasks", "revoke", *ids, **options),
        back=address("/task", {"queue": queue, "id": ids[0]}) if ids else address("/queue", {"name": queue}),
        destroys=True,
        preview=preview,
        run=run,
    )


def plan_pause(site: Site, query: Query) -> Plan:
    """Have no worker begin a task of a queue, or let them go on."""
    queue, is_paused = query.needed("queue"), query.flag("paused")
    verb = "pause" if is_paused else "resume"

    def run(progress: Progress) -> Done:
        control = site.app.control
        answers = control.pause(queue) if is_paused else control.resume(queue)
        progress.count = sum(answer is not None for answer in answers.values())
        text = f"Queue {queue} is {verb}d; {progress.count:,} worker processes have answered."
        return Done(progress.count, text)

    effect = "no worker begins a further task of it; those that run go on" if is_paused else "workers go on"
    return Plan(
        question=f"{verb.capitalize()} queue {queue}?",
        verb=verb.capitalize(),
        subject=f"queue {queue}",
        command=command("workers", verb, queue, **site.command_options),
        back=address("/queue", {"name": queue}),
        preview=lambda: Preview(1, f"From then on {effect}."),
        run=run,
    )


def plan_stop(site: Site, query: Query) -> Plan:
    """Have workers end."""
    # Without one, all workers would be asked.
    query.needed("worker")
    names = query.all("worker")

    def run(progress: Progress) -> Done:
        answers = site.app.control.shutdown(names)
        progress.count = sum(answer is not None for answer in answers.values())
        return Done(progress.count, f"{progress.count:,} of {len(names):,} workers have answered, and end.")

    def preview() -> Preview:
        from conquiet.tasks.control.workers import live_workers

        workers = live_workers(site.client, site.settings.namespace, forgets_ended=False)
        alive = {one.name for one in workers}.intersection(names)
        text = f"{len(alive):,} of {len(names):,} are alive, and would end after the tasks that run; "
        text += "what they have read and not begun is free for others."
        return Preview(len(alive), text, is_possible=bool(alive))

    return Plan(
        question=f"Stop {', '.join(names)}?",
        verb="Stop",
        subject="workers",
        command=command("workers", "stop", *names, **site.command_options, yes=True),
        back="/workers",
        destroys=True,
        preview=preview,
        run=run,
    )


ACTIONS = (
    Action("retry-tasks", plan_retry),
    Action("purge-tasks", plan_purge),
    Action("revoke", plan_revoke),
    Action("pause", plan_pause),
    Action("stop-workers", plan_stop),
)
