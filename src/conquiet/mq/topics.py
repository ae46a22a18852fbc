"""Topics: named sets of partitions, found through a registry and never through SCAN."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, cast, get_args

from redis.cluster import RedisCluster
from redis.exceptions import NoPermissionError

from conquiet.arguments import check_positive_int
from conquiet.errors import QueueError, TopicError
from conquiet.masking import shown
from conquiet.mq.deletion import delete_keys
from conquiet.mq.keys import Layout, RegistryKeys, TopicKeys, check_topic_part
from conquiet.mq.policies import TopicPolicies
from conquiet.mq.scripts import begin_delete, create_topic, end_delete, set_policies
from conquiet.queue.connection import (
    Client,
    as_text,
    check_client,
    execute,
    forget_connections,
    open_client,
    visible_errors,
)
from conquiet.queue.message import entry_id_order
from conquiet.settings import Settings

#: What create_topic.lua writes of a topic.
_META = ("partitionCount", "layout", "createdAt", "updatedAt", "policies", "schemaVersion")
#: Of a topic's meta; without a mark it is 1. A later one means that this version would misread the topic.
_META_VERSION = 1
#: No server holds the keys of as many.
_MOST_PARTITIONS = 1_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it was when it was opened, with the client that reaches it.

    Examples:
        >>> topic = Topics(client).create("orders-by-customer", partitions=4)
        >>> topic.name, topic.partition_count
        ('orders-by-customer', 4)
    """

    client: Client = field(repr=False)
    name: str
    partition_count: int
    layout: Layout
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    created_at_ms: int | None = None
    #: When its partitions or policies were last changed.
    updated_at_ms: int | None = None

    @property
    def keys(self) -> TopicKeys:
        return TopicKeys(self.name, self.layout, isinstance(self.client, RedisCluster))

    @property
    def partitions(self) -> range:
        return range(self.partition_count)

    def check_partition(self, partition: int) -> None:
        """Refuse the number of a partition that it does not have.

        Raises:
            TopicError: it has fewer.
        """
        if partition not in self.partitions:
            raise TopicError(self.name, f"has no partition {partition}, only 0 to {self.partition_count - 1}")

    def call(self, *command: Any, group: str | None = None, **options: Any) -> Any:
        """Run one Redis command; a Redis failure is a `QueueError` that names the topic."""
        with self.visible(command[0], group=group):
            return execute(self.client, *command, **options)

    def end_mark(self, partition: int) -> str | None:
        """The key of the mark that its deletion takes away; `None` for a plain stream."""
        return None if self.layout == "bare_stream" else self.keys.end(partition)

    def visible(self, operation: str, group: str | None = None) -> AbstractContextManager[None]:
        """Turn whatever redis-py raises inside into a `QueueError`."""
        return visible_errors(operation, stream=self.name, group=group)


class Topics:
    """The registry of one server or cluster.

    Examples:
        >>> topic = Topics(client).create("orders-by-customer", partitions=4)
        >>> Topics(client).create("orders-by-customer", partitions=4) == topic  # it is opened
        True
    """

    def __init__(self, client: Client) -> None:
        check_client(client)
        self._client = client
        self._is_cluster = isinstance(client, RedisCluster)
        self._keys = RegistryKeys(self._is_cluster)

    def create(self, name: str, partitions: int = 1, policies: TopicPolicies | None = None) -> Topic:
        """Create the topic, or open it as it is if it exists; of many that try at once, one creates it.

        Raises:
            TopicError: it exists with another number of partitions or with other policies; or a plain stream
                of this name has messages, which the topic's consumers would not read.
        """
        check_topic_part("topic", name)
        found = self.open(name)
        if found.layout == "bare_stream":
            _check_finished(found)
        topic = self._write(name, partitions, policies, "create")
        if topic.partition_count != partitions:
            raise TopicError(
                name,
                f"exists with {topic.partition_count} partitions, not {partitions}; `grow` adds partitions",
            )
        if policies is not None and topic.policies != policies:
            raise TopicError(
                name, f"exists with other policies, {topic.policies}; `change_policies` changes them"
            )
        return topic

    def change_policies(self, topic: Topic | str, policies: TopicPolicies) -> Topic:
        """Give a topic other policies, in place of all that it has; consumers follow within a second.

        Raises:
            TopicError: it is not there.
        """
        name = name_of(topic)
        if not set_policies(self._client, self._keys, name, policies.encode()):
            raise TopicError(name, "is not there; `create` makes it")
        return self.open(name)

    def grow(self, topic: Topic | str, partitions: int) -> Topic:
        """Add partitions.

        With `HashPartitioner` nearly every key moves to another partition, with `ConsistentHashPartitioner`
        only a few: until the old partitions are drained, messages of a moved key may be handled out of order.

        Raises:
            TopicError: it is not there, or would shrink.
        """
        name = name_of(topic)
        grown = self._write(name, partitions, None, "grow")
        if grown.partition_count == 0:
            raise TopicError(name, "is not there; `create` makes it")
        if grown.partition_count > partitions:
            raise TopicError(
                name,
                f"has {grown.partition_count} partitions and cannot shrink to {partitions}: "
                "messages in the removed partitions would have no reader",
            )
        return grown

    def restore(self, topic: Topic) -> Topic:
        """Create the streams that partitions lack: an earlier version made none, or they were deleted.

        Raises:
            TopicError: the topic was deleted.
        """
        return self.grow(topic, self.open_again(topic).partition_count)

    def open(self, name: str) -> Topic:
        """The topic; a name without meta is a plain stream, its own only partition."""
        with visible_errors("open", stream=name, group=None):
            reply = execute(self._client, "HMGET", self._keys.meta(name), *_META)
        if reply == [None] * len(_META):
            return Topic(client=self._client, name=name, partition_count=1, layout="bare_stream")
        try:
            count, layout, created_at, updated_at, policies, version = reply
            if not 1 <= int(count) <= _MOST_PARTITIONS:
                raise ValueError("it has no such number of partitions")  # noqa: TRY301 -- as what int() raises
            return Topic(
                client=self._client,
                name=name,
                partition_count=int(count),
                layout=layout_of(name, layout, version),
                policies=TopicPolicies.read(policies),
                created_at_ms=number_of(created_at),
                updated_at_ms=number_of(updated_at),
            )
        except (AttributeError, TypeError, ValueError) as error:
            forget_connections(self._client)
            reason = f"its meta cannot be read, or the reply was that of another call: {reply!r:.200}"
            raise QueueError("open", stream=name, group=None, reason=reason) from error

    def open_existing(self, name: str) -> Topic:
        """The topic, or the plain stream.

        Raises:
            TopicError: neither is there.
        """
        topic = self.open(name)
        self.check_exists(topic)
        return topic

    def check_exists(self, topic: Topic) -> None:
        """Refuse a plain stream that is not there; its dead letters, which may outlive it, are enough.

        Raises:
            TopicError: neither is there.
        """
        keys = (topic.keys.stream(0), topic.keys.dead_letters(0))
        if topic.layout == "bare_stream" and not any(topic.call("EXISTS", key) for key in keys):
            raise TopicError(topic.name, "is not there: neither a topic nor a stream")

    def open_again(self, topic: Topic) -> Topic:
        """The topic as it is now: it may have grown.

        Raises:
            TopicError: it was deleted, or a plain stream became a topic: the keys are others.
        """
        found = self.open(topic.name)
        if found.layout != topic.layout:
            raise TopicError(
                topic.name, "was deleted, or created in place of a plain stream, since it was opened"
            )
        return found

    def names(self) -> list[str]:
        """Every topic's name, in order."""
        with visible_errors("SMEMBERS", stream=self._keys.registry, group=None):
            return sorted(map(as_text, execute(self._client, "SMEMBERS", self._keys.registry)))

    def delete(self, topic: Topic | str) -> None:
        """Delete a topic with all its keys: messages, dead letters, leases, retries.

        Consumers and producers that run get a `TopicError`, and leave nothing behind. The topic leaves the
        registry first: a crash in between leaves keys that a second call deletes.
        """
        name = name_of(topic)
        deleted = begin_delete(self._client, self._keys, name)
        if deleted is None:
            raise TopicError(name, "is not there; a plain stream is deleted with DEL")
        count, layout = deleted
        known = Topic(client=self._client, name=name, partition_count=count, layout=layout)  # type: ignore[arg-type]  # written by create_topic.lua
        delete_keys(known, known.partitions)
        # Last: until then a second call knows how many partitions there are.
        end_delete(self._client, self._keys, name)

    def _write(
        self, name: str, partitions: int, policies: TopicPolicies | None, mode: Literal["create", "grow"]
    ) -> Topic:
        check_topic_part("topic", name)
        check_positive_int("partitions", partitions)
        keys = TopicKeys(name, "hash_tagged" if self._is_cluster else "single")
        encoded = "" if policies is None else policies.encode()
        count = create_topic(self._client, self._keys, keys, partitions, policies=encoded, mode=mode)
        if count < 0:
            raise TopicError(name, "is being deleted; if that was interrupted, delete it once more")
        topic = Topic(client=self._client, name=name, partition_count=count, layout=keys.layout)
        if not count:
            return topic
        found = self.open(name)
        if found.layout == "bare_stream":
            # Deleted meanwhile: on a cluster the streams were created in calls of their own.
            delete_keys(topic, range(partitions))
            raise TopicError(name, "was deleted in the same moment")
        return found


def name_of(topic: Topic | str) -> str:
    """The name of a topic that was given as such or by its name."""
    if isinstance(topic, Topic):
        return topic.name
    if not isinstance(topic, str):
        raise TypeError(
            f"topic must be a Topic or the name of one, got {shown(topic)}; "
            "a plain stream is named by its key"
        )
    return topic


def topic_of(topic: Topic | str) -> Topic:
    """The topic itself, or the one of this name on the server of the settings.

    Raises:
        QueueError: that server does not answer.
        TopicError: it has neither a topic nor a stream of this name.
    """
    if isinstance(topic, Topic):
        return topic
    topic = name_of(topic)
    url = Settings.load().redis_url
    hint = f"the settings name {url}: set CONQUIET_REDIS_URL, or redis_url in conquiet.toml, or give a Topic"
    try:
        with visible_errors("open", stream=topic, group=None):
            client = _shared_client(url)
        return Topics(client).open_existing(topic)
    except QueueError as error:
        reason = f"{error.__cause__}; {hint}"
        raise type(error)("open", stream=topic, group=None, reason=reason) from error.__cause__
    except TopicError as error:
        raise TopicError(topic, f"is not there: neither a topic nor a stream; {hint}") from error


#: One for each process and server; redis-py opens new connections after a fork.
_shared_client = cache(open_client)


def _check_finished(stream: Topic) -> None:
    """Refuse to make a topic of a plain stream that has messages: consumers would read other keys."""
    try:
        what = _unfinished_part(stream)
    except QueueError as error:
        reply = str(error.__cause__)
        if isinstance(error.__cause__, NoPermissionError):
            _log.warning("whether %r is a plain stream with messages cannot be seen: %s", stream.name, reply)
        elif not reply.startswith("WRONGTYPE"):
            raise
        return
    if what is not None:
        raise TopicError(
            stream.name,
            f"cannot be created: a plain stream of this name has {what}, which a topic's consumers would not "
            "find. Finish or delete them, or give the topic another name",
        )


def _unfinished_part(stream: Topic) -> str | None:
    last = stream.call("XREVRANGE", stream.name, "+", "-", "COUNT", 1)
    if last:
        infos = stream.call("XINFO GROUPS", stream.name)
        end = entry_id_order(last[0][0])
        unfinished = [
            info["name"].decode(errors="backslashreplace")
            for info in infos
            if info["pending"] or entry_id_order(info["last-delivered-id"]) < end
        ]
        if unfinished:
            return f"entries that group {', '.join(unfinished)} has not finished"
        if not infos:
            return "entries that no group has read"
    if stream.call("XLEN", stream.keys.dead_letters(0)):
        return "dead letters"
    return "delayed messages" if stream.call("EXISTS", stream.keys.delayed(0)) else None


def number_of(text: bytes | None) -> int | None:
    """A field that should be a number, `None` if it is none or not there."""
    with suppress(TypeError, ValueError):
        return int(text)  # type: ignore[arg-type]
    return None


def limit_of(score: bytes | float | None) -> int | None:
    """How many partitions a member may own, by its score; `None`, any number, without one."""
    with suppress(TypeError, ValueError, OverflowError):
        return max(0, int(float(score)))  # type: ignore[arg-type]
    return None


def layout_of(topic: str, layout: bytes | None, version: bytes | None) -> Layout:
    """The layout in a topic's meta.

    Raises:
        QueueError: it is of a later version.
    """
    mark, text = number_of(version), as_text(layout or b"")
    if text in get_args(Layout) and (version is None or (mark is not None and mark <= _META_VERSION)):
        return cast("Layout", text)
    reason = (
        f"its meta has layout {text!r} and schema version {as_text(version or b'1')}, this conquiet reads "
        f"{' and '.join(get_args(Layout)[:2])} up to version {_META_VERSION}: use the version that created it"
    )
    raise QueueError("open", stream=topic, group=None, reason=reason)
