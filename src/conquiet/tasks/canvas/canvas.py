"""Chain and Group: canvases as they are written in Python."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from conquiet.arguments import check_name
from conquiet.tasks.app import GATHER, TaskApp
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.canvas.group_handle import GroupHandle
from conquiet.tasks.canvas.nodes import Fork, Link, OnError, Position, Step, queues_of
from conquiet.tasks.envelope import new_id
from conquiet.tasks.handle import TaskHandle
from conquiet.tasks.options import TaskOptions
from conquiet.tasks.task import TaskCall


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks, chains or groups that run at once."""

    members: tuple[TaskCall | Chain | Group, ...]
    on_error: OnError = "fail"

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("a group needs members")
        if self.on_error not in ("fail", "pass"):
            raise ValueError(f"on_error must be 'fail' or 'pass', got {self.on_error!r}")

    def enqueue(self, *, id: str | None = None) -> GroupHandle:  # noqa: A002 -- as of a task
        """Enqueue all members; their results are read by the handle.

        After an error some members may be enqueued, and the group does not end until it is enqueued again.

        Args:
            id: enqueued again with the same id, as after an error or a crash, each member is enqueued once.
        """
        app = _app_of(self)
        fork = _Builder(app, id).fork(self, None)
        FollowUps(app).start((fork,), None, Position(canvas=fork.id))
        names = tuple(str(_last_link(member).envelope["name"]) for member in fork.members)
        return GroupHandle(fork.id, fork.queue, len(fork.members), names, queues_of((fork,)), _app=app)

    async def enqueue_async(self, *, id: str | None = None) -> GroupHandle:  # noqa: A002 -- as of a task
        """As `enqueue`, for an event loop."""
        return await to_thread(self.enqueue, id=id)


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that run one after the other; a partial call gets the result of the step before it.

    The step behind a group gets the list of its results, in the order of its members.
    """

    steps: tuple[TaskCall | Chain | Group, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a chain needs steps")

    def enqueue(self, *, id: str | None = None) -> TaskHandle:  # noqa: A002 -- as of a task
        """Enqueue the first step; returns the handle of the last one.

        Args:
            id: enqueued again with the same id, as after an error or a crash, each step is enqueued once.
        """
        app = _app_of(self)
        steps = _Builder(app, id).steps(self)
        last = _last_link(steps)
        FollowUps(app).start(steps, None, Position(canvas=last.id))
        name = str(last.envelope["name"])
        return TaskHandle(last.id, last.queue, name, queues=queues_of(steps), _app=app)

    async def enqueue_async(self, *, id: str | None = None) -> TaskHandle:  # noqa: A002 -- as of a task
        """As `enqueue`, for an event loop."""
        return await to_thread(self.enqueue, id=id)


def chain(*steps: TaskCall | Chain | Group) -> Chain:
    """Run steps one after the other.

    Examples:
        >>> chain(price.call(2, 5), price.partial(3)).enqueue().result(60)
        30
    """
    return Chain(steps)


def group(*members: TaskCall | Chain | Group | Iterable[TaskCall], on_error: OnError = "fail") -> Group:
    """Run members at once; an iterable counts as its items.

    Args:
        on_error: what a failed member means for the step behind the group: "fail" ends the canvas, "pass"
            gives it `{"error": …}` in the place of the result.

    Examples:
        >>> group(price.call(n, 10) for n in range(3)).enqueue().results(60)
        [0, 10, 20]
    """
    flat: list[TaskCall | Chain | Group] = []
    for member in members:
        if isinstance(member, TaskCall | Chain | Group):
            flat.append(member)
        else:
            flat.extend(member)
    return Group(tuple(flat), on_error)


def chord(
    members: Iterable[TaskCall | Chain | Group], body: TaskCall, *, on_error: OnError = "fail"
) -> Chain:
    """Run members at once, and the body with the list of their results once all of them have ended.

    Examples:
        >>> chord([price.call(n, 10) for n in range(3)], total.partial()).enqueue().result(60)
        30
    """
    return Chain((Group(tuple(members), on_error), body))


def _app_of(part: TaskCall | Chain | Group) -> TaskApp:
    while not isinstance(part, TaskCall):
        part = part.steps[0] if isinstance(part, Chain) else part.members[0]
    if part.app is None:
        raise ValueError(f"the call of {part.name!r} knows no app: make it with Task.call or Task.partial")
    return cast(TaskApp, part.app)


class _Builder:
    """Builds the steps of one canvas, each with its id.

    Given the same id and the same canvas, all ids are the same: what has a record is not enqueued again.
    """

    def __init__(self, app: TaskApp, id: str | None) -> None:  # noqa: A002 -- as of a task
        if id is not None:
            check_name("id", id)
        self._app = app
        self._id = id
        self._count = 0

    def steps(self, part: TaskCall | Chain | Group) -> tuple[Step, ...]:
        """The steps of a part, one after the other."""
        if isinstance(part, TaskCall):
            return (self._link(part),)
        if isinstance(part, Group):
            gather = self._link(replace(self._app.tasks[GATHER].partial(), options=_options_of_first(part)))
            return self.fork(part, gather), gather
        steps: list[Step] = []
        for index, step in enumerate(part.steps):
            behind = part.steps[index + 1] if index + 1 < len(part.steps) else None
            if isinstance(step, Group) and isinstance(behind, TaskCall):
                # The task behind it takes the results itself.
                steps.append(self.fork(step, None, behind.options.queue))
            else:
                steps.extend(self.steps(step))
        return tuple(steps)

    def fork(self, part: Group, behind: Link | None, queue: str | None = None) -> Fork:
        """A group, in the queue of the step behind it."""
        members = tuple(self.steps(member) for member in part.members)
        if behind is not None:
            queue = behind.queue
        return Fork(
            id=self._next_id(),
            queue=queue or _first_link(members[0]).queue,
            members=members,
            on_error=part.on_error,
        )

    def _link(self, call: TaskCall) -> Link:
        if call.options.ignore_result or call.options.unique_for_s is not None:
            raise ValueError(f"{call.name!r} in a canvas must keep its result, and cannot be unique")
        envelope = self._app.envelope(call)
        envelope.id = self._next_id()
        delay_ms, eta = call.options.delay_ms(envelope.enqueued_at), call.options.eta
        due_ms = 0 if eta is None else round(eta.timestamp() * 1000)
        return Link(envelope=envelope.fields(), into=call.into, delay_ms=delay_ms, due_ms=due_ms)

    def _next_id(self) -> str:
        if self._id is None:
            return new_id()
        self._count += 1
        return f"{self._id}.{self._count}"


def _first_link(steps: tuple[Step, ...]) -> Link:
    first = steps[0]
    return first if isinstance(first, Link) else _first_link(first.members[0])


def _last_link(steps: tuple[Step, ...]) -> Link:
    last = steps[-1]
    assert isinstance(last, Link)  # noqa: S101 -- for mypy: a group at the end is gathered
    return last


def _options_of_first(part: Group) -> TaskOptions:
    first: TaskCall | Chain | Group = part
    while not isinstance(first, TaskCall):
        first = first.steps[0] if isinstance(first, Chain) else first.members[0]
    return TaskOptions(queue=first.options.queue, priority=first.options.priority)
