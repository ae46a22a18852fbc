"""What a NAME is: a topic, a plain stream, or a queue of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import UsageError
from conquiet.errors import MissingExtraError, TopicError

if TYPE_CHECKING:
    from conquiet.mq import DeadLetters
    from conquiet.queue import Client


@dataclass(frozen=True, slots=True)
class Subjects:
    """What a command looks at."""

    topics: list[str]
    #: `None` if they cannot be looked at.
    queues: list[str] | None
    #: Why not.
    problem: str = ""


def find_subjects(client: Client, names: Sequence[str] | None, namespace: str) -> Subjects:
    """The topics, plain streams and queues of tasks of these names; without any, every topic and queue.

    A name may be a topic's and a queue's. One that is neither is left among the topics: to read it says so.
    """
    from conquiet.mq import MqAdmin
    from conquiet.operations import queue_names

    queues = queue_names(client, namespace)
    if not names:
        topics = [topic.name for topic in MqAdmin(client).topics()]
        if queues is None:
            return Subjects(topics, None, f"an ACL forbids to read {namespace}:queues")
        try:
            if queues:
                import_module("conquiet.tasks")
        except MissingExtraError as error:
            return Subjects(topics, None, str(error))
        return Subjects(topics, queues)
    found = [name for name in names if name in (queues or ())]
    return Subjects([name for name in names if name not in found or _is_topic(client, name)], found)


@contextmanager
def dead_letters(context: CommandContext, name: str) -> Iterator[DeadLetters]:
    """The dead letters of a topic or stream.

    Raises:
        UsageError: it is a queue of tasks, whose dead letters are tasks.
        TopicError: there is no topic, no stream and no dead letter of this name.
    """
    from conquiet.mq import DeadLetters, Topics
    from conquiet.operations import queue_names

    with context.topic(name) as topic:
        try:
            Topics(topic.client).check_exists(topic)
        except TopicError:
            if name not in (queue_names(topic.client) or ()):
                raise
            raise UsageError(
                f"{name!r} is a queue of tasks. Its dead letters: conquiet tasks list --queue {name} "
                "--where dead_lettered, tasks show, tasks retry, tasks purge."
            ) from None
        yield DeadLetters(topic)


def _is_topic(client: Client, name: str) -> bool:
    from conquiet.mq import Topics

    try:
        Topics(client).open_existing(name)
    except TopicError:
        return False
    return True
