"""Tasks: a queue by where its tasks are; one task with state, history, result and its canvas."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from conquiet.operations import diagnose, queue_facts, queue_sample_name
from conquiet.page.canvas_graph import canvas_of, drawing_of
from conquiet.page.charts import chart_of
from conquiet.page.history import lag_over_time
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View
from conquiet.queue.message import is_entry_id

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp, TaskStatus
    from conquiet.tasks.control import TaskLetter
    from conquiet.tasks.record import Transition

_ROWS = 50
_PLACES = ("in_flight", "queued", "waiting", "delayed", "dead_lettered", "ended")
#: Facts of a step that are no text for people.
_LARGE = 2_000
#: Letters among which that of a task is looked for, and how much earlier than its own time.
_MOST_READ = 2_000
_CLOCKS_DIFFER_MS = 60_000


def read(site: Site, query: Query) -> dict[str, Any]:
    """One page of the tasks of a queue."""
    name, app = query.needed("name"), site.app
    where = query.choice("where", _PLACES)
    facts = queue_facts(site.client, name, namespace=site.settings.namespace)
    subject = site.subject(name, "queue")
    site.sampler.look_at(subject)
    history = lag_over_time(site, queue_sample_name(name, site.settings.namespace), is_queue=True)
    return {
        "name": name,
        "subject": subject,
        "where": where,
        "places": _PLACES,
        "facts": facts,
        "stats": app.control.queue(name),
        "page": app.control.tasks(name, where, limit=_ROWS, after=query.text("after")),  # type: ignore[arg-type]
        "findings": [one for one in diagnose([], queues=[facts]) if one.level != "ok"],
        "chart": chart_of(history.series, title=f"Backlog of queue {name}"),
        "history": history,
        "command_options": site.command_options,
    }


def read_one(site: Site, query: Query) -> dict[str, Any]:
    """One task by its id; of one without a record, what its dead letter says."""
    queue, task_id, app = query.needed("queue"), query.needed("id"), site.app
    status = app.results.status(task_id, queue)
    letter = letter_of(app, queue, task_id, status, query.entry_id("letter"))
    envelope = canvas_of(app, queue, task_id, status, letter)
    args = envelope.args if envelope is not None else letter.args if letter is not None else None
    result: str | None = None
    history: list[tuple[Transition, str]] = []
    if status is not None:
        if status.state.value == "succeeded":
            result = site.mask.as_json(status.result, indent=2)
            if status.stored is not None:
                result = f"in the payload store: {status.stored.key}"
        for step in status.history:
            shown = dict(step.facts)
            if isinstance(shown.get("attempt"), int):
                # The record counts from 0.
                shown["attempt"] += 1
            facts = [f"{name}: {site.mask.as_json(value, longest=_LARGE)}" for name, value in shown.items()]
            history.append((step, ", ".join(facts)))
    return {
        "queue": queue,
        "task_id": task_id,
        "status": status,
        "letter": letter,
        "args": None if args is None else site.mask.as_json(args, indent=2),
        "result": result,
        "history": history,
        "drawing": None if envelope is None else drawing_of(app, envelope),
        "has_envelope": envelope is not None,
        "command_options": site.command_options,
    }


def letter_of(
    app: TaskApp, queue: str, task_id: str, status: TaskStatus | None, letter_id: str | None
) -> TaskLetter | None:
    """The dead letter of a task, looked for where it should be: there may be many others behind it."""
    from conquiet.tasks.control.letters import read_letters

    start, end = letter_id, letter_id or "+"
    if start is None:
        if status is not None and status.state.value != "dead_lettered":
            return None
        # Without a record: a letter is never older than its task. Ids of canvases may be any text.
        made_ms = task_id.partition("-")[0] if is_entry_id(task_id) else ""
        given_up = [step.at.timestamp() for step in status.history] if status is not None else []
        since_ms = round(given_up[-1] * 1000) if given_up else int(made_ms or 0)
        start = f"{max(0, since_ms - _CLOCKS_DIFFER_MS)}-0"
    letters = read_letters(app.client, app.keys(queue), start, end)
    return next((one for one in islice(letters, _MOST_READ) if one.task_id == task_id), None)


VIEWS = (View("/queue", "queue.html", read, "overview"), View("/task", "task.html", read_one, "overview"))
