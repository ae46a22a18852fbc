"""Schedules: enable, disable, run now."""

from __future__ import annotations

from conquiet.operations import run_schedule_now, runnable_target
from conquiet.page.actions.action import Action, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.commands import command
from conquiet.page.query import Query, address
from conquiet.page.site import Site


def plan_enable(site: Site, query: Query) -> Plan:
    """Enable a schedule, or disable it."""
    name, is_enabled = query.needed("name"), query.flag("enabled")
    verb = "enable" if is_enabled else "disable"

    def preview() -> Preview:
        from conquiet.tasks import UnknownScheduleError

        if site.app.schedules.store.read(name)[1] is None:
            raise UnknownScheduleError(name)
        return Preview(1, effect)

    def run(progress: Progress) -> Done:
        site.app.schedules.enable(name, is_enabled=is_enabled)
        progress.count = 1
        return Done(1, f"Schedule {name} is {verb}d.")

    effect = (
        "It goes on with its first occurrence after now."
        if is_enabled
        else "It enqueues nothing until it is enabled; what it misses is not caught up."
    )
    return Plan(
        question=f"{verb.capitalize()} schedule {name}?",
        verb=verb.capitalize(),
        subject=f"schedule {name}",
        command=command("schedule", verb, name, **site.command_options),
        back=address("/schedule", {"name": name}),
        preview=preview,
        run=run,
    )


def plan_run(site: Site, query: Query) -> Plan:
    """Enqueue one more occurrence of a schedule."""
    name = query.needed("name")

    def preview() -> Preview:
        try:
            runnable_target(site.app, name)
        except ValueError as error:
            return Preview(0, f"It cannot run from here: {error}.", is_possible=False)
        return Preview(1, "One more task or message is enqueued; the next occurrence stays as it is planned.")

    def run(progress: Progress) -> Done:
        made = run_schedule_now(site.app, name)
        progress.count = 1
        return Done(1, f"Enqueued {made} for schedule {name}.")

    return Plan(
        question=f"Run schedule {name} now?",
        verb="Run now",
        subject=f"schedule {name}",
        command=command("schedule", "run", name, **site.command_options),
        back=address("/schedule", {"name": name}),
        preview=preview,
        run=run,
    )


ACTIONS = (Action("enable-schedule", plan_enable), Action("run-schedule", plan_run))
