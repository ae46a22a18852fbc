"""Schedules: what is enqueued when, and where that is kept; `conquiet.tasks.beat` enqueues it."""

from conquiet.tasks.schedules.errors import ScheduleChangedError, UnknownScheduleError
from conquiet.tasks.schedules.redis_store import RedisScheduleStore
from conquiet.tasks.schedules.schedule import CatchUp, Schedule, ScheduleOptions
from conquiet.tasks.schedules.schedules import KeptSchedule, Schedules, next_occurrences
from conquiet.tasks.schedules.store import ScheduleStore
from conquiet.tasks.schedules.target import MessageTarget, TaskTarget

__all__ = [
    "CatchUp",
    "KeptSchedule",
    "MessageTarget",
    "RedisScheduleStore",
    "Schedule",
    "ScheduleChangedError",
    "ScheduleOptions",
    "ScheduleStore",
    "Schedules",
    "TaskTarget",
    "UnknownScheduleError",
    "next_occurrences",
]
