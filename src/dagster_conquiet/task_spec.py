"""Which task of a conquiet app a step has done: stated once, passed to the factories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conquiet.arguments import check_name
from dagster_conquiet.asset_keys import plain_name
from dagster_conquiet.resources import ResourceKeys

if TYPE_CHECKING:
    # Not imported: `dg` looks at every public name, also where the extra of tasks is not installed.
    from conquiet.tasks.work import Attach


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task by its name, the queue where its workers read, and how it is enqueued.

    Examples:
        >>> spec = TaskSpec(task="shop.total", queue="mails")
    """

    #: The name of the task.
    task: str
    #: The queue of the task.
    queue: str = "default"
    #: That of the `TaskApp`.
    namespace: str = "tasks"
    #: More of `TaskOptions`, such as `{"priority": 9}`.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Which task of an earlier attempt at the step is waited for, instead of another one being enqueued:
    #: "succeeded" (or not ended), "unfinished" (not ended), or "never".
    attach: Attach = "succeeded"
    #: The names of the resources, if they are others than `redis_streams` and `database`.
    resources: ResourceKeys = field(default_factory=ResourceKeys)

    def __post_init__(self) -> None:
        check_name("task", self.task)

    @property
    def name(self) -> str:
        """What definitions are named after unless they are given a name."""
        return plain_name(self.task.replace(".", ":"))
