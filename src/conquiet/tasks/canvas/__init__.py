"""Canvas: tasks that follow on each other, alone or in groups."""

from conquiet.tasks.canvas.canvas import Chain, Group, chain, chord, group
from conquiet.tasks.canvas.group_handle import GroupHandle, GroupStatus

__all__ = ["Chain", "Group", "GroupHandle", "GroupStatus", "chain", "chord", "group"]
