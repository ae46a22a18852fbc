"""`conquiet schedule`: list, show, apply, delete, enable, disable, run, next, dry-run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext, DryRunOption, YesOption
from conquiet.cli.exits import UsageError
from conquiet.cli.task_apps import AppOptions
from conquiet.cli.values import parse_time, shown_time
from conquiet.masking import mask

if TYPE_CHECKING:
    from conquiet.tasks import Schedule, Schedules
    from conquiet.tasks.schedules.store import StoredSchedule

_Name = Annotated[str, typer.Argument(help="The schedule's name.", metavar="NAME")]
_File = Annotated[Path, typer.Argument(help="A file of schedules, TOML or YAML.", metavar="FILE")]
_Version = Annotated[
    int | None, typer.Option("--if-version", help="Only if it is at this version.", metavar="N")
]
_Count = Annotated[int, typer.Argument(help="How many, up to 10,000.", min=1, max=10_000, metavar="[N]")]
_After = Annotated[
    int | None, typer.Option("--after", help="After this time; else now.", metavar="TIME", parser=parse_time)
]


def list_schedules(context: CommandContext, options: AppOptions) -> None:
    """All schedules: when they are due next, how often they ran, and which beat leads."""
    with options.open(context) as app:
        documents = [_document(app.schedules, stored) for stored in app.schedules.stored()]
        stats = asdict(app.schedules.stats())

    def print_table() -> None:
        rows = [
            (
                each["name"] + ("" if each["is_enabled"] else " (disabled)"),
                _when(each["definition"]),
                shown_time(each["planned_ms"]),
                shown_time(each["last_planned_ms"]),
                each["runs"],
                each["skipped"],
                each["error"],
            )
            for each in documents
        ]
        columns = ("schedule", "when", "next (UTC)", "last (UTC)", ">runs", ">skipped", "error")
        context.output.print_table(columns, rows)
        context.output.line(f"{stats['leader'] or 'no beat'} leads; {stats['overdue']:,} overdue")

    context.output.show({"schedules": documents, "stats": stats}, print_table)


def show_schedule(context: CommandContext, options: AppOptions, name: _Name) -> None:
    """One schedule: its definition, its state, and its last occurrences."""
    from conquiet.tasks import UnknownScheduleError

    with options.open(context) as app:
        _, stored = app.schedules.store.read(name)
        if stored is None:
            raise UnknownScheduleError(name)
        document = _document(app.schedules, stored)
        document["history"] = [asdict(one) for one in app.schedules.history(name)]

    def print_schedule() -> None:
        for key, value in document.items():
            if key not in ("history", "definition") and value is not None:
                text = (
                    f"{shown_time(value)} UTC" if key.endswith(("planned_ms", "at_ms", "due_ms")) else value
                )
                context.output.line(f"{key + ':':<18}{text}")
        for key, value in (document["definition"] or {}).items():
            context.output.line(f"  {key} = {value}")
        rows = [
            (shown_time(one["planned_ms"]), one["drift_ms"], one["id"], "" if one["is_new"] else "was there")
            for one in document["history"]
        ]
        context.output.print_table(("planned (UTC)", ">drift ms", "id", ""), rows)

    context.output.show(document, print_schedule)


def apply_schedules(
    context: CommandContext,
    options: AppOptions,
    file: _File,
    version: _Version = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write the schedules of a file that are new or changed; others stay as they are."""
    from conquiet.tasks import TaskTarget
    from conquiet.tasks.schedules.files import load_schedules

    schedules = load_schedules(file)
    if version is not None and len(schedules) != 1:
        raise UsageError(f"--if-version is of one schedule, {file} has {len(schedules)}.")
    with options.open(context) as app:
        for schedule in schedules:
            # All of them before the first is written: what is refused for its size leaves no half of a file.
            target = schedule.target
            # The arguments, of a task that the app has: else the worker would refuse them each time.
            if isinstance(target, TaskTarget) and target.task in app.tasks:
                app.tasks[target.task].signature.load(target.args)
            app.schedules.encode(schedule)
        applied = [_apply(app.schedules, schedule, version, dry_run=dry_run) for schedule in schedules]

    def print_table() -> None:
        rows = [(each["name"], each["outcome"], each["version"]) for each in applied]
        context.output.print_table(("schedule", "", ">version"), rows)

    context.output.show({"schedules": applied, "is_dry_run": dry_run}, print_table)


def delete_schedule(
    context: CommandContext,
    options: AppOptions,
    name: _Name,
    version: _Version = None,
    yes: YesOption = False,
) -> None:
    """Delete a schedule with its history; what it has enqueued stays, what cannot be delivered is dropped."""
    context.output.confirm(f"Delete the schedule {name!r}?", is_yes=yes)
    with options.open(context) as app:
        app.schedules.delete(name, version=version)
    context.output.show({"name": name, "is_deleted": True}, f"Deleted {name}.")


def enable_schedule(context: CommandContext, options: AppOptions, name: _Name) -> None:
    """Have a schedule go on, with its first occurrence after now."""
    _set_enabled(context, options, name, is_enabled=True)


def disable_schedule(context: CommandContext, options: AppOptions, name: _Name) -> None:
    """Have a schedule enqueue nothing until it is enabled; what it misses is not caught up."""
    _set_enabled(context, options, name, is_enabled=False)


def run_schedule(context: CommandContext, options: AppOptions, name: _Name) -> None:
    """Enqueue the task, or send the message, of a schedule once more, now; its next occurrence stays."""
    from conquiet.operations import run_schedule_now

    with options.open(context) as app:
        made = run_schedule_now(app, name)
    context.output.show({"name": name, "id": made}, f"{name}: {made}")


def next_times(
    context: CommandContext, options: AppOptions, name: _Name, count: _Count = 5, after: _After = None
) -> None:
    """The next times at which a schedule is due."""
    from conquiet.tasks import next_occurrences

    with options.open(context) as app:
        kept = app.schedules.get(name)
        begin = after
        if begin is None and kept.stored.planned_ms is not None:
            begin = kept.stored.planned_ms - 1
        times = next_occurrences(kept.schedule, count, begin)
    _show_times(context, {name: (kept.schedule, times)})


def dry_run_file(context: CommandContext, file: _File, count: _Count = 5, after: _After = None) -> None:
    """The next times of the schedules of a file, which is neither applied nor compared with what is kept."""
    from conquiet.tasks import next_occurrences
    from conquiet.tasks.schedules.files import load_schedules

    found = {one.name: (one, next_occurrences(one, count, after)) for one in load_schedules(file)}
    _show_times(context, found)


def _show_times(context: CommandContext, found: dict[str, tuple[Schedule, list[tuple[int, int]]]]) -> None:
    from conquiet.tasks.schedules.timing import datetime_of, zone

    document = {
        "schedules": [
            {"name": name, "times": [{"planned_ms": planned, "due_ms": due} for planned, due in times]}
            for name, (_, times) in found.items()
        ]
    }
    rows = []
    for name, (schedule, times) in found.items():
        for planned, due in times:
            local = datetime_of(planned).astimezone(zone(schedule.tz)).isoformat(" ", "seconds")
            rows.append((name, f"{local} {schedule.tz}", shown_time(planned), shown_time(due)))
    context.output.show(
        document, lambda: context.output.print_table(("schedule", "planned", "(UTC)", "due (UTC)"), rows)
    )


def _apply(schedules: Schedules, schedule: Schedule, version: int | None, *, dry_run: bool) -> dict[str, Any]:
    from conquiet.tasks import ScheduleChangedError

    _, stored = schedules.store.read(schedule.name)
    if dry_run:
        found = 0 if stored is None else stored.version
        if version is not None and version != found:
            raise ScheduleChangedError(schedule.name, expected=version, version=found)
        before = None
        # One that cannot be read is replaced.
        with suppress(ValueError):
            before = None if stored is None else schedules.decode(stored)
        is_changed = before != schedule
    else:
        found, is_changed = schedules.apply(schedule, version=version)
    outcome = "unchanged" if not is_changed else "created" if stored is None else "changed"
    return {"name": schedule.name, "outcome": outcome, "version": found}


def _set_enabled(context: CommandContext, options: AppOptions, name: str, *, is_enabled: bool) -> None:
    with options.open(context) as app:
        version = app.schedules.enable(name, is_enabled=is_enabled)
        _, stored = app.schedules.store.read(name)
    planned_ms = None if stored is None else stored.planned_ms
    document = {"name": name, "is_enabled": is_enabled, "version": version, "planned_ms": planned_ms}
    text = f"{name} is enabled; next at {shown_time(planned_ms)} UTC" if is_enabled else f"{name} is disabled"
    context.output.show(document, text)


def _document(schedules: Schedules, stored: StoredSchedule) -> dict[str, Any]:
    document = asdict(stored)
    document["error"] = stored.error and mask(stored.error)
    try:
        document["definition"] = schedules.decode(stored).document()
    except ValueError as error:
        # Signed or encrypted with keys that only the app has; --app names it.
        document |= {"definition": None, "error": mask(str(error))}
    return document


def _when(definition: dict[str, Any] | None) -> str:
    if definition is None:
        return "-"
    if "every_s" in definition:
        return f"every {definition['every_s']:g} s"
    text = definition.get("cron") or definition.get("calendar") or definition.get("at")
    return f"{text} {definition['tz']}" if "tz" in definition else str(text)
