"""`conquiet topics`: list, create, grow, change policies, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.context import CommandContext, DryRunOption, YesOption
from conquiet.cli.documents import topic_document
from conquiet.cli.values import duration_option, shown_time
from conquiet.errors import QueueError, TopicError

if TYPE_CHECKING:
    from conquiet.mq import Topic, TopicPolicies

_Topic = Annotated[str, typer.Argument(help="The topic's name.", metavar="TOPIC")]
_Keep = Annotated[
    int | None, typer.Option("--keep", help="Retention: `trim` keeps so many entries in each partition.")
]
_KeepFor = Annotated[int | None, duration_option("--keep-for", "Retention: `trim` keeps what is younger.")]
_TrimEvery = Annotated[
    int | None, duration_option("--trim-every", "Retention: consumers trim by themselves.")
]
_KeepLetters = Annotated[
    int | None, typer.Option("--keep-letters", min=1, help="Retention of dead letters: keep so many.")
]
_KeepLettersFor = Annotated[
    int | None, duration_option("--keep-letters-for", "Retention of dead letters: keep what is younger.")
]
_Partitions = Annotated[int, typer.Option("--partitions", "-p", help="How many partitions.")]


def list_topics(context: CommandContext) -> None:
    """Every topic of the server."""
    from conquiet.mq import MqAdmin, Topics
    from conquiet.queue.connection import is_unanswered

    documents: list[dict[str, Any]] = []
    with context.client() as client:
        for name in Topics(client).names():
            try:
                documents.append(topic_document(MqAdmin(client).topic(name)))
            except TopicError:
                continue  # deleted since the names were read
            except QueueError as error:
                # A key of another type in one topic hides no other topic; without a server there is no list.
                if is_unanswered(error):
                    raise
                documents.append({"name": name, "error": str(error)})

    def print_table() -> None:
        rows = [
            (each["name"], "?", "?", each["error"], "?")
            if "error" in each
            else (
                each["name"],
                each["partitions"],
                each["length"],
                each["last_id"],
                shown_time(each["created_at_ms"]),
            )
            for each in documents
        ]
        context.output.print_table(("topic", ">partitions", ">length", "last id", "created (UTC)"), rows)

    context.output.show({"topics": documents}, print_table)


def create_topic(
    context: CommandContext,
    name: _Topic,
    partitions: _Partitions = 1,
    keep: _Keep = None,
    keep_for: _KeepFor = None,
    keep_letters: _KeepLetters = None,
    keep_letters_for: _KeepLettersFor = None,
    trim_every: _TrimEvery = None,
) -> None:
    """Create a topic, or confirm that it is there with this number of partitions and these policies."""
    from conquiet.mq import TopicPolicies, Topics

    policies = _policies(keep, keep_for, keep_letters, keep_letters_for, trim_every)
    with context.client() as client:
        given = None if policies == TopicPolicies() else policies
        _show(context, Topics(client).create(name, partitions, given))


def change_policies(
    context: CommandContext,
    name: _Topic,
    keep: _Keep = None,
    keep_for: _KeepFor = None,
    keep_letters: _KeepLetters = None,
    keep_letters_for: _KeepLettersFor = None,
    trim_every: _TrimEvery = None,
) -> None:
    """Give a topic these policies in place of all that it has; without options, none."""
    from conquiet.mq import Topics

    with context.client() as client:
        _show(
            context,
            Topics(client).change_policies(
                name, _policies(keep, keep_for, keep_letters, keep_letters_for, trim_every)
            ),
        )


def grow_topic(context: CommandContext, name: _Topic, partitions: _Partitions) -> None:
    """Add partitions, up to this number; keys move, so drain the old ones first if order matters."""
    from conquiet.mq import Topics

    with context.client() as client:
        _show(context, Topics(client).grow(name, partitions))


def delete_topic(
    context: CommandContext, name: _Topic, yes: YesOption = False, dry_run: DryRunOption = False
) -> None:
    """Delete a topic with its messages, dead letters, leases and retries."""
    from conquiet.mq import DeadLetters, MqAdmin, Topics

    with context.client() as client:
        admin, topics = MqAdmin(client), Topics(client)
        document: dict[str, Any] = {
            "name": name,
            "messages": admin.topic(name).length,
            "dead_letters": DeadLetters(topics.open(name)).count(),
            "groups": [group.group for group in admin.groups(name)],
            "is_dry_run": dry_run,
        }
        content = f"{document['messages']:,} messages and {document['dead_letters']:,} dead letters"
        if not dry_run:
            context.output.confirm(f"Delete topic {name!r} with {content}?", is_yes=yes)
            topics.delete(name)
    verb = "Would delete" if dry_run else "Deleted"
    context.output.show(document, f"{verb} topic {name!r} with {content}.")


def _policies(
    keep: int | None,
    keep_for: int | None,
    keep_letters: int | None,
    keep_letters_for: int | None,
    trim_every: int | None,
) -> TopicPolicies:
    from conquiet.mq import DeadLetterPolicy, TopicPolicies

    letters = None
    if keep_letters is not None or keep_letters_for is not None:
        letters = DeadLetterPolicy(retention_length=keep_letters, retention_ms=keep_letters_for)
    return TopicPolicies(
        retention_length=keep,
        retention_ms=keep_for,
        dead_letters=letters,
        trim_every_s=None if trim_every is None else trim_every // 1000,
    )


def _show(context: CommandContext, topic: Topic) -> None:
    document = {
        "name": topic.name,
        "partitions": topic.partition_count,
        "layout": topic.layout,
        "policies": asdict(topic.policies),
        "created_at_ms": topic.created_at_ms,
    }
    context.output.show(document, f"Topic {topic.name!r} has {topic.partition_count} partitions.")
