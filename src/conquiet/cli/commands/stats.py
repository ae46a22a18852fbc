"""`conquiet stats`: length, lag, pending and ages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from conquiet.cli.commands.queues import print_queues, queue_documents
from conquiet.cli.context import CommandContext
from conquiet.cli.documents import group_document, topic_document
from conquiet.cli.names import find_subjects
from conquiet.cli.task_apps import AppOptions
from conquiet.cli.values import AllNames, Namespace, shown_age, shown_lag

_COLUMNS = (
    "topic",
    "group",
    ">length",
    ">lag",
    ">pending",
    ">oldest waiting",
    ">oldest pending",
    ">delayed",
    ">dead letters",
)


def stats(
    context: CommandContext,
    names: AllNames = None,
    by_partition: Annotated[
        bool, typer.Option("--partitions", help="One line for each partition of each group.")
    ] = False,
    namespace: Namespace = "tasks",
) -> None:
    """Length, lag, pending and ages of topics, streams and their groups; the figures of queues of tasks.

    A lag that neither the server nor a bounded count knows is "unknown" (null in JSON), never 0.
    """
    from conquiet.mq import DeadLetters, MqAdmin, Topics

    with context.client() as client:
        admin, topics = MqAdmin(client), Topics(client)
        subjects = find_subjects(client, names, namespace)
        documents = [
            {
                **topic_document(admin.topic(name)),
                "dead_letters": DeadLetters(topics.open(name)).count(),
                "groups": [group_document(group) for group in admin.groups(name)],
            }
            for name in subjects.topics
        ]
    queues: list[dict[str, Any]] | None = None if subjects.queues is None else []
    if subjects.queues:
        with AppOptions(namespace=namespace).open(context) as app:
            queues = queue_documents(app, subjects.queues)

    def print_table() -> None:
        rows: list[tuple[Any, ...]] = []
        for topic in documents:
            name, length, others = topic["name"], topic["length"], (topic["delayed"], topic["dead_letters"])
            if not topic["groups"]:
                rows.append((name, "no group", length, None, None, None, None, *others))
            for group in topic["groups"]:
                parts = group["partitions"] if by_partition else [{**group, "length": length}]
                for part in parts:
                    label = f"{name} p{part['partition']}" if by_partition else name
                    ages = (part["oldest_undelivered_age_ms"], part["oldest_pending_age_ms"])
                    figures = (part["length"], shown_lag(part["lag"]), part["pending"], *map(shown_age, ages))
                    rows.append((label, group["group"], *figures, *others))
        if rows or not queues:
            context.output.print_table(_COLUMNS, rows)
        if queues:
            print_queues(context.output, queues)

    context.output.show({"topics": documents, "queues": queues}, print_table)
