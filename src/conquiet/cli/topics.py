"""`conquiet topics`: list, create, grow, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.documents import topic_document
from conquiet.cli.site import DryRunOption, Site, YesOption, command
from conquiet.cli.values import parse_duration, shown_time
from conquiet.errors import QueueError, TopicError

if TYPE_CHECKING:
    from conquiet.mq import MqAdmin, Topic

_Topic = Annotated[str, typer.Argument(help="The topic's name.", metavar="TOPIC")]
_Partitions = Annotated[int, typer.Option("--partitions", "-p", help="How many partitions.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topics = typer.Typer(help="Topics: named sets of partitions.", no_args_is_help=True)
    app.add_typer(topics, name="topics")
    for name, function in (("list", list_all), ("create", create), ("grow", grow), ("delete", delete)):
        command(topics, name)(function)


def list_all(site: Site) -> None:
    """Every topic of the server."""
    from conquiet.mq import MqAdmin, Topics

    with site.client() as client:
        admin = MqAdmin(client)
        found = [_document(admin, name) for name in Topics(client).names()]
    documents = [one for one in found if one is not None]

    def tell() -> None:
        rows = [
            (one["name"], one["partitions"], one["length"], one["last_id"], shown_time(one["created_at_ms"]))
            if "error" not in one
            else (one["name"], "?", "?", one["error"], "?")
            for one in documents
        ]
        site.output.table(("topic", ">partitions", ">length", "last id", "created (UTC)"), rows)

    site.output.show({"topics": documents}, tell)


def _document(admin: MqAdmin, name: str) -> dict[str, Any] | None:
    """What is known of a topic: its error if it cannot be read, nothing if it has just been deleted."""
    from conquiet.queue.connection import is_unanswered

    try:
        return topic_document(admin.topic(name))
    except TopicError:
        return None
    except QueueError as error:
        # A key of another type in one topic hides no other topic; without a server there is nothing to show.
        if is_unanswered(error):
            raise
        return {"name": name, "error": str(error)}


def create(
    site: Site,
    name: _Topic,
    partitions: _Partitions = 1,
    keep: Annotated[
        int | None, typer.Option("--keep", help="Retention: `trim` keeps so many entries in each partition.")
    ] = None,
    keep_for: Annotated[
        str | None,
        typer.Option("--keep-for", help="Retention: `trim` keeps what is younger.", metavar="DURATION"),
    ] = None,
    trim_every: Annotated[
        str | None,
        typer.Option("--trim-every", help="Retention: consumers trim by themselves.", metavar="DURATION"),
    ] = None,
) -> None:
    """Create a topic, or confirm that it is there with this number of partitions."""
    from conquiet.mq import TopicPolicies, Topics

    kept = {
        "retention_length": keep,
        "retention_ms": parse_duration(keep_for) if keep_for else None,
        "trim_every_s": parse_duration(trim_every) // 1000 if trim_every else None,
    }
    policies = TopicPolicies(**kept) if any(value is not None for value in kept.values()) else None
    with site.client() as client:
        _show(site, Topics(client).create(name, partitions, policies))


def grow(site: Site, name: _Topic, partitions: _Partitions) -> None:
    """Add partitions, up to this number; keys move, so drain the old ones first if order matters."""
    from conquiet.mq import Topics

    with site.client() as client:
        _show(site, Topics(client).grow(name, partitions))


def delete(site: Site, name: _Topic, yes: YesOption = False, dry_run: DryRunOption = False) -> None:
    """Delete a topic with its messages, dead letters, leases and retries."""
    from conquiet.mq import DeadLetters, MqAdmin, Topics

    with site.client() as client:
        admin, topics = MqAdmin(client), Topics(client)
        document: dict[str, Any] = {
            "name": name,
            "messages": admin.topic(name).length,
            "dead_letters": DeadLetters(topics.open(name)).count(),
            "groups": [group.group for group in admin.groups(name)],
            "is_dry_run": dry_run,
        }
        held = f"{document['messages']:,} messages and {document['dead_letters']:,} dead letters"
        if not dry_run:
            site.output.confirm(f"Delete topic {name!r} with {held}?", is_yes=yes)
            topics.delete(name)
    verb = "Would delete" if dry_run else "Deleted"
    site.output.show(document, lambda: site.output.say(f"{verb} topic {name!r} with {held}."))


def _show(site: Site, topic: Topic) -> None:
    document = {
        "name": topic.name,
        "partitions": topic.partition_count,
        "layout": topic.layout,
        "policies": asdict(topic.policies),
        "created_at_ms": topic.created_at_ms,
    }
    site.output.show(
        document, lambda: site.output.say(f"Topic {topic.name!r} has {topic.partition_count} partitions.")
    )
