"""The canvas of a task as a graph: what follows on it, and the members that run at once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conquiet.queue.connection import as_text, run_command
from conquiet.queue.message import data_of

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp, TaskStatus
    from conquiet.tasks.canvas.nodes import Step
    from conquiet.tasks.control import TaskLetter
    from conquiet.tasks.envelope import TaskEnvelope

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 190, 46, 50, 14
#: Tasks that are drawn; a group may have 100,000 members.
_MOST_NODES = 60
_MOST_MEMBERS = 12
#: Entries behind the time at which a task was enqueued among which its envelope is looked for: a call of
#: `send_many` adds many in one millisecond.
_MOST_READ = 2_000
_AT_ONCE = 200
#: Without a record the time is that of its id, by the clock of another machine.
_CLOCKS_DIFFER_MS = 1_000
_TASK_ID = re.compile(r"(\d{10,15})-\d+")


@dataclass(slots=True)
class Node:
    """One task, or "… and n more"."""

    id: str
    queue: str
    name: str
    column: int
    row: int
    state: str = "to come"

    @property
    def x(self) -> int:
        return 4 + self.column * (_WIDTH + _GAP_X)

    @property
    def y(self) -> int:
        return 4 + self.row * (_HEIGHT + _GAP_Y)


@dataclass(slots=True)
class Drawing:
    """A graph from left to right."""

    nodes: list[Node] = field(default_factory=list)
    #: Each from the right side of a node to the left side of another.
    edges: list[tuple[Node, Node]] = field(default_factory=list)
    #: Of the group that the task is a member of: all members, those that have not ended, those that failed.
    group: tuple[int, int, int] | None = None
    node_width: int = _WIDTH
    node_height: int = _HEIGHT

    @property
    def width(self) -> int:
        return max((node.x for node in self.nodes), default=0) + _WIDTH + 8

    @property
    def height(self) -> int:
        return max((node.y for node in self.nodes), default=0) + _HEIGHT + 8


def canvas_of(
    app: TaskApp, queue: str, task_id: str, status: TaskStatus | None, letter: TaskLetter | None
) -> TaskEnvelope | None:
    """The envelope of a task that is a dead letter, delayed, or still in its stream.

    `None` for one that has succeeded, was revoked or has expired: Redis keeps its record, and no envelope.
    """
    if letter is not None:
        return _decoded(app, json.dumps(letter.envelope).encode()) if letter.envelope else None
    keys = app.keys(queue)
    item = run_command(app.client, "HGET", keys.delayed_items, task_id, stream=keys.prefix, group=None)
    if item:
        return _decoded(app, item.partition(b":")[2])
    if status is not None and status.state.is_final:
        return None
    since_ms = _enqueued_at(task_id, status)
    for stream in () if since_ms is None else keys.streams:
        data = _envelope_in(app, stream, task_id, f"{since_ms}-0")
        if data is not None:
            return _decoded(app, data)
    return None


def _enqueued_at(task_id: str, status: TaskStatus | None) -> int | None:
    """When it was added to its stream, or just before, ms."""
    queued = [step.at for step in status.history if step.state == "queued"] if status is not None else []
    if queued:
        # The script that wrote the step has added the entry, in this very millisecond.
        return round(queued[-1].timestamp() * 1000)
    match = _TASK_ID.match(task_id)
    return None if match is None else max(0, int(match[1]) - _CLOCKS_DIFFER_MS)


def _envelope_in(app: TaskApp, stream: str, task_id: str, start: str) -> bytes | None:
    from conquiet.tasks.envelope import TaskEnvelope

    for _ in range(_MOST_READ // _AT_ONCE):
        command = ("XRANGE", stream, start, "+", "COUNT", _AT_ONCE)
        entries = run_command(app.client, *command, stream=stream, group=None)
        for _, fields in entries:
            try:
                data = data_of(fields)
                if TaskEnvelope.decode(data).id == task_id:
                    return data
            except ValueError:
                continue
        if len(entries) < _AT_ONCE:
            break
        start = f"({as_text(entries[-1][0])}"
    return None


def _decoded(app: TaskApp, data: bytes) -> TaskEnvelope | None:
    """`None` for one that this app has not the keys for."""
    try:
        return app.codec.decode(data)
    except ValueError:
        return None


def drawing_of(app: TaskApp, envelope: TaskEnvelope) -> Drawing | None:
    """The task and what follows on it; `None` for one that is in no canvas, or in one that cannot be read."""
    from conquiet.tasks.canvas.nodes import Position

    carried = envelope.meta.get("canvas")
    if not isinstance(carried, dict):
        return None
    try:
        position = Position.of(carried)
    except ValueError:
        return None
    drawing = Drawing()
    first = Node(envelope.id, envelope.queue, envelope.name, 0, 0)
    drawing.nodes.append(first)
    ends = _draw(drawing, position.then, [first], 1, 0)
    member = position.member
    if member is not None:
        command = ("HMGET", app.keys(member.queue).group(member.group), "total", "left", "failed", "nextName")
        total, left, failed, name = run_command(app.client, *command, stream=member.queue, group=None)
        if total is not None:
            drawing.group = (int(total), int(left), int(failed))
        if member.next_id:
            column = max(node.column for node in ends) + 1
            behind = Node(member.next_id, member.queue, (name or b"").decode() or "what follows", column, 0)
            drawing.nodes.append(behind)
            drawing.edges += [(node, behind) for node in ends]
    for node in drawing.nodes:
        status = app.results.status(node.id, node.queue) if node.id else None
        if status is not None:
            node.state = status.state.value
    return drawing


def _draw(drawing: Drawing, steps: Sequence[Step], before: list[Node], column: int, row: int) -> list[Node]:
    """Draw steps one after the other; returns the last ones."""
    from conquiet.tasks.canvas.nodes import Link

    for step in steps:
        if len(drawing.nodes) >= _MOST_NODES:
            break
        if isinstance(step, Link):
            node = Node(step.id, step.queue, str(step.envelope.get("name", "")), column, row)
            drawing.nodes.append(node)
            drawing.edges += [(one, node) for one in before]
            before, column = [node], column + 1
            continue
        ends: list[Node] = []
        next_row, first_row = row, row
        for member in step.members[:_MOST_MEMBERS]:
            ends += _draw(drawing, member, before, column, next_row)
            next_row = max(node.row for node in drawing.nodes) + 1
        left = len(step.members) - _MOST_MEMBERS
        if left > 0:
            more = Node("", step.queue, f"… and {left:,} more", column, next_row)
            drawing.nodes.append(more)
            drawing.edges += [(one, more) for one in before]
            ends.append(more)
        before, column, row = ends, max(node.column for node in ends) + 1, first_row
    return before
