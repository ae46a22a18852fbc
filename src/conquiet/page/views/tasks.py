"""Tasks: a queue by where its tasks are; one task with state, history, result and its canvas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conquiet.operations import diagnose, queue_facts, queue_sample_name
from conquiet.page.canvas_graph import canvas_of, drawing_of
from conquiet.page.charts import chart_of
from conquiet.page.history import lag_over_time
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View

if TYPE_CHECKING:
    from conquiet.tasks import TaskStatus

_ROWS = 50
_PLACES = ("in_flight", "queued", "waiting", "delayed", "dead_lettered", "ended")
#: Facts of a step that are no text for people.
_LARGE = 2_000


def read(site: Site, query: Query) -> dict[str, Any]:
    """One page of the tasks of a queue."""
    name, app = query.needed("name"), site.app
    where = query.choice("where", _PLACES)
    facts = queue_facts(site.client, name, namespace=site.settings.namespace)
    site.sampler.look_at(site.subject(name, "queue"))
    history = lag_over_time(site, queue_sample_name(name, site.settings.namespace), is_queue=True)
    return {
        "name": name,
        "where": where,
        "places": _PLACES,
        "facts": facts,
        "stats": app.control.queue(name),
        "page": app.control.tasks(name, where, limit=_ROWS, after=query.text("after")),  # type: ignore[arg-type]
        "findings": [one for one in diagnose([], queues=[facts]) if one.level != "ok"],
        "chart": chart_of(history.series, title=f"Backlog of queue {name}"),
        "history": history,
    }


def read_one(site: Site, query: Query) -> dict[str, Any]:
    """One task by its id; of one without a record, what its dead letter says."""
    queue, task_id, app = query.needed("queue"), query.needed("id"), site.app
    status = app.results.status(task_id, queue)
    letter = app.control.letter(task_id, queue=queue)
    envelope = canvas_of(app, queue, task_id, letter)
    args = envelope.args if envelope is not None else letter.args if letter is not None else None
    return {
        "queue": queue,
        "task_id": task_id,
        "status": status,
        "letter": letter,
        "args": None if args is None else site.mask.as_json(args, indent=2),
        "result": _result_of(site, status),
        "history": [] if status is None else [(one, _facts_of(site, one.facts)) for one in status.history],
        "drawing": None if envelope is None else drawing_of(app, envelope),
    }


def _result_of(site: Site, status: TaskStatus | None) -> str | None:
    if status is None or status.state.value != "succeeded":
        return None
    if status.stored is not None:
        return f"in the payload store: {status.stored.key}"
    return site.mask.as_json(status.result, indent=2)


def _facts_of(site: Site, facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {site.mask.as_json(value)[:_LARGE]}" for name, value in facts.items())


VIEWS = (View("/queue", "queue.html", read, "overview"), View("/task", "task.html", read_one, "overview"))
