"""MqAdmin: statistics of topics and groups, and changes to them; without SCAN."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from conquiet.arguments import check_name, check_positive_int
from conquiet.mq import scripts
from conquiet.mq.clock import server_ms
from conquiet.mq.look.delayed import DelayedMessage, cancel_delayed, delayed_messages
from conquiet.mq.look.group_changes import (
    PartitionReset,
    PrunedConsumer,
    create_group,
    delete_group,
    id_before,
)
from conquiet.mq.look.owners import GroupOwners, group_owners, live_names
from conquiet.mq.look.pending import PendingPage, PendingQuery, PendingSort, pending_page
from conquiet.mq.look.retention import PartitionTrim, Retention, trim_partition
from conquiet.mq.look.stats import (
    GroupStats,
    TopicStats,
    group_marks,
    group_names,
    group_stats,
    partitions_with,
    topic_stats,
)
from conquiet.mq.topics import Topic, Topics, name_of
from conquiet.queue.backlog import COUNT_LIMIT
from conquiet.queue.connection import Client


class MqAdmin:
    """The operator's view of one server or cluster; keeps no state, so every call reads what is there now.

    Raises:
        QueueError: of every method, if Redis failed; what could not be read never counts as empty.
        TopicError: of every method, if the topic or the group is not there.

    Examples:
        >>> admin = MqAdmin(client)
        >>> [stats.name for stats in admin.topics() if stats.name == "shipments"]
        ['shipments']
        >>> removed = admin.trim("shipments", retention_length=1_000, dry_run=True)
    """

    def __init__(self, client: Client) -> None:
        self._topics = Topics(client)

    def topics(self) -> list[TopicStats]:
        """Every topic, in the order of names."""
        opened = [self._topics.open(name) for name in self._topics.names()]
        # One that was deleted since the names were read looks like a plain stream.
        return [topic_stats(topic) for topic in opened if topic.layout != "bare_stream"]

    def topic(self, topic: Topic | str) -> TopicStats:
        """One topic, or a plain stream."""
        return topic_stats(self._open(topic))

    def groups(self, topic: Topic | str, *, count_limit: int = COUNT_LIMIT) -> list[GroupStats]:
        """Every group of a topic: pending, lag and ages, per partition and in total.

        Args:
            count_limit: where the server does not know the lag, it is counted up to this and else unknown.
        """
        check_positive_int("count_limit", count_limit)
        opened = self._open(topic)
        marks = group_marks(opened)
        return [group_stats(opened, name, marks, count_limit=count_limit) for name in group_names(marks)]

    def pending(
        self,
        topic: Topic | str,
        group: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        sort: PendingSort = "idle",
        min_idle_ms: int = 0,
        consumer: str | None = None,
        most_read: int | None = None,
    ) -> PendingPage:
        """One page of what was delivered and not settled; delivers nothing and counts no delivery.

        Args:
            most_read: with `min_idle_ms`, look at so many at the most; without, the server looks at all.
        """
        query = PendingQuery(
            limit=limit,
            cursor=cursor,
            sort=sort,
            min_idle_ms=min_idle_ms,
            consumer=consumer,
            most_read=most_read,
        )
        opened = self._open(topic)
        return pending_page(opened, group, partitions_with(opened, group), query)

    def delayed(self, topic: Topic | str, *, limit: int = 100) -> tuple[DelayedMessage, ...]:
        """What waits to be added, sent with a delay or to be retried as a copy: the next one due first."""
        check_positive_int("limit", limit)
        return delayed_messages(self._open(topic), limit)

    def cancel_delayed(self, topic: Topic | str, names: Iterable[str]) -> int:
        """Delete delayed messages for good, by their names, and return how many there were.

        Of a copy that waits for its retry, the message is lost to its group: it is not a dead letter.
        """
        return cancel_delayed(self._open(topic), names)

    def owners(self, topic: Topic | str, group: str) -> GroupOwners:
        """Which consumers own which partition since when, and which are alive."""
        return group_owners(self._open(topic), group)

    def create_group(self, topic: Topic | str, group: str, at: str | int = "start") -> bool:
        """Create a group, in every partition at one moment; `False`, and nothing changes, if it is there.

        Args:
            at: "start", "end" (as Redis: "$"), an entry id or a time in ms; the first message that the group
                is given is the first one at or after it.
        """
        check_name("group", group)
        return create_group(self._open(topic), group, at)

    def reset_group(
        self,
        topic: Topic | str,
        group: str,
        to: str | int,
        *,
        dry_run: bool = True,
        count_limit: int = COUNT_LIMIT,
    ) -> tuple[PartitionReset, ...]:
        """Let the group go on from another position, and return what that means; pending entries stay.

        Args:
            to: "start", "end", an entry id or a time in ms; the next message is the first at or after it.
            dry_run: change nothing, which is the default.
            count_limit: messages given again or skipped are counted up to this, and else `None`.
        """
        check_positive_int("count_limit", count_limit)
        opened, after = self._open(topic), id_before(to)
        # Refuses a group that is not there.
        partitions_with(opened, group)
        resets = []
        for partition in opened.partitions:
            moved = scripts.reset_group(
                opened, partition, group, after=after, dry_run=dry_run, count_limit=count_limit
            )
            if moved is not None:
                resets.append(PartitionReset(partition=partition, **moved._asdict()))
        return tuple(resets)

    def prune_consumers(
        self, topic: Topic | str, group: str, *, dry_run: bool = False
    ) -> tuple[PrunedConsumer, ...]:
        """Delete the consumers that have nothing pending and are not alive, checked in the same script."""
        opened = self._open(topic)
        members = live_names(opened, group, server_ms(opened))
        return tuple(
            PrunedConsumer(partition=partition, name=name)
            for partition in partitions_with(opened, group)
            for name in scripts.prune_consumers(opened, partition, group, members=members, dry_run=dry_run)
        )

    def delete_group(self, topic: Topic | str, group: str, *, force: bool = False) -> None:
        """Delete a group with its leases and retries, from every partition or from none.

        One that is alive, or has messages that are pending or wait as copies for their retry, needs `force`.
        """
        delete_group(self._open(topic), group, force=force)

    def trim(
        self,
        topic: Topic | str,
        *,
        retention_length: int | None = None,
        retention_ms: int | None = None,
        without_groups: bool = False,
        dry_run: bool = False,
    ) -> tuple[PartitionTrim, ...]:
        """Remove what every group has finished and the retention given, or else the policy, does not keep.

        Args:
            without_groups: also if the topic has no group at all, as one that only Spark or XREAD reads; else
                nothing of it is removed, since a group that comes later begins with its first entry.
            dry_run: only count, up to 10,000 in each partition.
        """
        opened = self._open(topic)
        if retention_length is None and retention_ms is None:
            retention = Retention.of_policies(opened)
        else:
            retention = Retention(length=retention_length, age_ms=retention_ms)
        retention = replace(retention, without_groups=without_groups)
        groups = group_names(group_marks(opened))
        return tuple(
            trim_partition(opened, partition, retention, groups, dry_run=dry_run)
            for partition in opened.partitions
        )

    def _open(self, topic: Topic | str) -> Topic:
        return self._topics.open_existing(name_of(topic))
