"""Control: what an operator asks of queues and of the workers that run."""

from conquiet.tasks.control.control import Control, Revocation
from conquiet.tasks.control.letter_retry import RetryReport
from conquiet.tasks.control.letters import TaskLetter
from conquiet.tasks.control.listing import ListedTask, TaskPage
from conquiet.tasks.control.queues import QueueStats
from conquiet.tasks.control.workers import WorkerDescription

__all__ = [
    "Control",
    "ListedTask",
    "QueueStats",
    "RetryReport",
    "Revocation",
    "TaskLetter",
    "TaskPage",
    "WorkerDescription",
]
