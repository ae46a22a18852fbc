"""Messages as they are in a topic or plain stream, read-only: pages, one with where it is, and new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Literal

from conquiet.arguments import check_positive_int
from conquiet.errors import TopicError
from conquiet.mq.envelope import Envelope, check_envelope
from conquiet.mq.look.pending import PendingEntry
from conquiet.mq.look.stats import group_marks
from conquiet.mq.positions import Position
from conquiet.mq.topics import Topic, Topics, name_of
from conquiet.payload import Payload, decode_payload
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.connection import Client, as_text
from conquiet.queue.message import RawEntry, data_of, entry_id_order, pairs_of
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import run_steps

#: Entries that one page reads at the most before it returns what it found, and what they may weigh.
_MAX_READ = 10_000
_MAX_BYTES = 4 * BATCH_BYTES
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One entry as it is in its stream; delivered to nobody by being read here.

    Examples:
        >>> sent = Producer(client).send(topic, {"order_id": 7}, key="bea")
        >>> message = MessageBrowser(client).page(topic, MessageQuery(key="bea")).messages[0]
        >>> message.payload
        {'order_id': 7}
    """

    partition: int
    id: str
    #: `None` of a malformed entry.
    payload: Payload | None
    key: str | None
    headers: dict[str, str]
    #: When it was sent, by the sender's clock; of a plain stream, when it was added.
    sent_at_ms: int
    #: Its fields as they came, one behind the other.
    data: bytes = field(repr=False)
    #: Of a malformed entry: what is wrong with it, and its fields.
    problem: str | None = None
    fields: dict[str, str] | None = None

    @property
    def position(self) -> Position:
        """Its place in the order of all partitions."""
        return Position.of(self.id.encode(), self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """Some of the messages.

    Examples:
        >>> browser = MessageBrowser(client)
        >>> page = browser.page(topic)
        >>> while page.cursor is not None:
        ...     page = browser.page(topic, MessageQuery(cursor=page.cursor))
    """

    messages: tuple[StoredMessage, ...]
    #: For the next page, `None` at the end. A page of a search may be short, or empty, and have a next one.
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """Which messages; newest first unless said otherwise.

    Examples:
        >>> query = MessageQuery(limit=100, oldest_first=True, text="order_id")
    """

    limit: int = 50
    cursor: str | None = None
    oldest_first: bool = False
    #: From this entry id or time on, and up to it: ms since 1970.
    since: str | int | None = None
    until: str | int | None = None
    #: Only with this key.
    key: str | None = None
    #: Only with this text in their bytes.
    text: str | None = None
    #: Only in this partition.
    partition: int | None = None
    #: So many are read at the most to find those.
    most_read: int = _MAX_READ

    def __post_init__(self) -> None:
        check_positive_int("limit", self.limit)
        check_positive_int("most_read", self.most_read)

    def matches(self, message: StoredMessage) -> bool:
        """Whether a message has the key and the text."""
        if self.key is not None and message.key != self.key:
            return False
        return self.text is None or self.text.encode() in message.data


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """What became of one message in one group.

    Examples:
        >>> created = MqAdmin(client).create_group(topic, "auditors")
        >>> sent = Producer(client).send(topic, {"order_id": 7}, key="bea")
        >>> browser = MessageBrowser(client)
        >>> message = browser.page(topic, MessageQuery(key="bea")).messages[0]
        >>> [place.state for place in browser.places(topic, message) if place.group == "auditors"]
        ['undelivered']
    """

    group: str
    #: "done" is settled: acked, a dead letter, or skipped by a reset of the group.
    state: Literal["undelivered", "pending", "done"]
    #: Of a pending one: at which consumer, since when, how often delivered.
    entry: PendingEntry | None = None


class MessageBrowser:
    """Shows what is in topics and plain streams; delivers nothing, and changes nothing.

    Raises:
        QueueError: of every method, if Redis failed.
        TopicError: of every method, if the topic or the message is not there.

    Examples:
        >>> page = MessageBrowser(client).page("shipments", MessageQuery(limit=10, key="ann"))
        >>> {message.key for message in page.messages} <= {"ann"}
        True
    """

    def __init__(self, client: Client) -> None:
        self._topics = Topics(client)

    def page(self, topic: Topic | str, query: MessageQuery | None = None) -> MessagePage:
        """One page, in the order of time over all partitions."""
        query = query or MessageQuery()
        opened = self._topics.open_existing(name_of(topic))
        found: list[StoredMessage] = []
        size = 0
        for number, message in enumerate(_messages(opened, query), start=1):
            size += len(message.data)
            if query.matches(message):
                found.append(message)
            if len(found) == query.limit or number == query.most_read or size >= _MAX_BYTES:
                return MessagePage(messages=tuple(found), cursor=str(message.position))
        return MessagePage(messages=tuple(found), cursor=None)

    def message(self, topic: Topic | str, entry_id: str) -> StoredMessage:
        """One message by its entry id, `1700000000000-0`, or `1700000000000-0@3` for partition 3."""
        opened, position = self._topics.open_existing(name_of(topic)), Position.parse(entry_id)
        found = []
        for partition in opened.partitions:
            if position.partition in (None, partition):
                stream = opened.keys.stream(partition)
                entries = opened.call("XRANGE", stream, position.entry_id, position.entry_id)
                found += [_stored(opened, partition, entry) for entry in entries]
        if len(found) > 1:
            ids = " or ".join(str(one.position) for one in found)
            raise TopicError(opened.name, f"has several entries {entry_id}: give {ids}")
        if not found:
            raise TopicError(opened.name, f"has no entry {entry_id}; it may have been trimmed or deleted")
        return found[0]

    def places(self, topic: Topic | str, message: StoredMessage) -> tuple[GroupPlace, ...]:
        """What became of a message in each group."""
        opened = self._topics.open_existing(name_of(topic))
        stream = opened.keys.stream(message.partition)
        places = []
        for group, last in sorted(group_marks(opened).get(message.partition, {}).items()):
            name = as_text(group)
            rows = opened.call(
                "XPENDING", stream, group, message.id, message.id, 1, group=name, parse_detail=True
            )
            if rows:
                entry = PendingEntry.of_row(message.partition, rows[0])
                places.append(GroupPlace(group=name, state="pending", entry=entry))
                continue
            is_delivered = entry_id_order(message.id) <= entry_id_order(last)
            places.append(GroupPlace(group=name, state="done" if is_delivered else "undelivered"))
        return tuple(places)

    def tail(self, topic: Topic | str, wait: Callable[[], bool], *, last: int = 0) -> Iterator[StoredMessage]:
        """The last messages, then new ones, until `wait`, called when there are none, returns true."""
        name = name_of(topic)
        opened = self._topics.open_existing(name)
        ends: dict[int, str] = {}
        for partition in opened.partitions:
            newest = opened.call("XREVRANGE", opened.keys.stream(partition), "+", "-", "COUNT", 1)
            ends[partition] = newest[0][0].decode() if newest else "0-0"
        if last:
            for message in reversed(self.page(opened, MessageQuery(limit=last)).messages):
                # One that was added just now comes below.
                if entry_id_order(message.id) <= entry_id_order(ends.get(message.partition, "0-0")):
                    yield message
        while True:
            batch = []
            for partition in opened.partitions:
                # Of a partition that was added meanwhile all is new.
                after = ends.get(partition, "0-0")
                some = list(_messages_in(opened, partition, f"({after}", "+", most=_PAGE))
                batch += some
                if some:
                    ends[partition] = some[-1].id
            yield from sorted(batch, key=lambda message: message.position)
            if not batch:
                if wait():
                    return
                opened = self._topics.open_existing(name)


def _messages(topic: Topic, query: MessageQuery) -> Iterator[StoredMessage]:
    after = None if query.cursor is None else Position.parse(query.cursor)
    streams: list[Iterable[StoredMessage]] = []
    for partition in topic.partitions:
        if query.partition not in (None, partition):
            continue
        start, end = _bound(query.since, "-"), _bound(query.until, "+")
        if after is not None and query.oldest_first:
            start = after.start_in(partition)
        elif after is not None:
            end = after.end_in(partition)
        streams.append(_messages_in(topic, partition, start, end, is_reverse=not query.oldest_first))
    return merge(*streams, key=lambda message: message.position, reverse=not query.oldest_first)


def _messages_in(
    topic: Topic, partition: int, start: str, end: str, *, is_reverse: bool = False, most: int = _MAX_READ + 1
) -> Iterator[StoredMessage]:
    """The entries of an interval, read a few at a time while they are large."""
    pages = EntryPages(topic.keys.stream(partition), first=start, last=end, newest_first=is_reverse)
    read = 0
    while not pages.is_end and read < most:
        entries = run_steps(topic.call, pages.next(min(_PAGE, most - read)))
        read += len(entries)
        yield from (_stored(topic, partition, entry) for entry in entries)


def _stored(topic: Topic, partition: int, entry: RawEntry) -> StoredMessage:
    entry_id, fields = entry
    pairs = pairs_of(fields)
    added_at_ms = int(entry_id.partition(b"-")[0])
    data = b" ".join(value for _, value in pairs)
    try:
        payload = decode_payload(data_of(fields))
        is_bare = topic.layout == "bare_stream"
        check_envelope(payload, bare_stream=topic.name if is_bare else None)
    except ValueError as error:
        return StoredMessage(
            partition=partition,
            id=entry_id.decode(),
            payload=None,
            key=None,
            headers={},
            sent_at_ms=added_at_ms,
            data=data,
            problem=str(error),
            fields={as_text(name): as_text(value) for name, value in pairs},
        )
    envelope = Envelope.of(payload, topic=topic.name, partition=partition, is_bare=is_bare)
    return StoredMessage(
        partition=partition,
        id=entry_id.decode(),
        payload=envelope.payload,
        key=envelope.key,
        headers=dict(envelope.headers),
        sent_at_ms=envelope.timestamp_ms or added_at_ms,
        data=data,
    )


def _bound(bound: str | int | None, default: str) -> str:
    return default if bound is None else str(bound)
