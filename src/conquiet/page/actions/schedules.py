"""Schedules: enable, disable, run now."""

from __future__ import annotations

from conquiet.operations import run_schedule_now
from conquiet.page.actions.action import Action, Plan, Preview
from conquiet.page.actions.jobs import Done, Progress
from conquiet.page.commands import command
from conquiet.page.query import Query, address
from conquiet.page.site import Site


def _of(site: Site) -> dict[str, object]:
    namespace = site.settings.namespace
    return {} if namespace == "tasks" else {"namespace": namespace}


def _plan_enable(site: Site, query: Query) -> Plan:
    name, is_enabled = query.needed("name"), query.flag("enabled")
    verb = "enable" if is_enabled else "disable"

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
        command=command("schedule", verb, name, **_of(site)),
        back=address("/schedule", {"name": name}),
        preview=lambda: Preview(1, effect),
        run=run,
    )


def _plan_run(site: Site, query: Query) -> Plan:
    name = query.needed("name")

    def run(progress: Progress) -> Done:
        made = run_schedule_now(site.app, name)
        progress.count = 1
        return Done(1, f"Enqueued {made} for schedule {name}.")

    return Plan(
        question=f"Run schedule {name} now?",
        verb="Run now",
        subject=f"schedule {name}",
        command=command("schedule", "run", name, **_of(site)),
        back=address("/schedule", {"name": name}),
        preview=lambda: Preview(
            1, "One more task or message is enqueued; the next occurrence stays as it is planned."
        ),
        run=run,
    )


ACTIONS = (Action("enable-schedule", _plan_enable), Action("run-schedule", _plan_run))
