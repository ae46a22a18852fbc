"""Every error of the core.

ConquietError
├── QueueError                  a call to Redis failed; `stream`, `group`, `operation`, `__cause__`
│   ├── NoConnectionError       the server is not there, or does not let the client in
│   ├── NotReplicatedError      a write that fewer replicas have confirmed than `min_replicas`
│   └── MalformedEntryError     a read met entries that are not `data` = JSON object; they stay pending
├── TopicError                  a topic is not there, is there with other partitions, or would shrink
│   └── PartitionBusyError      another consumer owns the partition
├── ConsumerBusyError           another drain lives under the same consumer name
├── LeaseLostError              another consumer may own the partition; what was to be settled was not
├── DbError                     a transaction could not be opened or committed; nothing was acked
│   ├── CommitUnknownError      a commit was sent and not confirmed
│   └── DatabaseUnavailableError       the database cannot be reached or refuses to write
│       └── WriteRefusedError   it answers, and refused what one message wrote
│           └── InboxRowLockedError    another transaction has the message's inbox row locked
├── MessageRejectedError        a handler returned what cannot be carried out; its message stays pending
├── PayloadTypeError            a payload does not fit its type, or would not come back; also a TypeError
├── HandlerCancelledError       an `async def` handler was cancelled, or awaited what was; it has failed
├── DrainError                  a drain ended with failed messages; `report`, `failures`
├── EmbeddedServerError         the private server could not be found, started or stopped
├── SettingsError               a setting is unknown, of the wrong kind, or cannot be read
└── MissingExtraError           a part was used whose packages are not installed; also an ImportError
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conquiet.masking import mask


class ConquietError(Exception):
    """The root of every error that conquiet itself raises; orchestrators move them between processes.

    Its sentence has no passwords in it, whatever it was built from.

    Examples:
        >>> try:
        ...     RedisStreamsQueue.from_url("redis://127.0.0.1:1", queue.config).enqueue({})
        ... except ConquietError as error:
        ...     print(type(error).__name__)
        NoConnectionError
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*(mask(part) if isinstance(part, str) else part for part in parts))

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take facts, not the sentence that pickle would call them with.
        return _rebuilt, (type(self), self.args, self.__dict__)


class QueueError(ConquietError):
    """A Redis call failed. After a timeout or a lost connection Redis may have executed it all the same.

    Examples:
        >>> try:
        ...     queue.enqueue({"order_id": 7})
        ... except QueueError as error:
        ...     print(error.operation, error.stream)  # it may have been added all the same
        '1...-0'
    """

    def __init__(self, operation: str, *, stream: str, group: str | None, reason: str) -> None:
        self.operation = operation
        self.stream = stream
        self.group = group
        of_group = f" for group {group!r}" if group is not None else ""
        super().__init__(f"{operation} on stream {stream!r}{of_group} failed: {reason}")


class NoConnectionError(QueueError):
    """The server is not there, or does not let the client in; the operation was not carried out.

    Examples:
        >>> try:
        ...     RedisStreamsQueue.from_url("redis://127.0.0.1:1", queue.config).enqueue({"order_id": 7})
        ... except NoConnectionError as error:
        ...     print("nothing was sent")
        nothing was sent
    """

    def __init__(self, operation: str, *, stream: str, group: str | None, reason: str) -> None:
        super().__init__(operation, stream=stream, group=group, reason=reason)
        of_group = f" for group {group!r}" if group is not None else ""
        self.args = (mask(f"no connection to Redis: {reason}; {operation} on stream {stream!r}{of_group}"),)


class NotReplicatedError(QueueError):
    """Fewer replicas than wanted have confirmed a write: a failover may lose it.

    What was added is in the stream, as far as it is known with its `entry_ids`; `None`: nothing was sent. The
    same call made again adds it a second time, unless it has a dedupe id: then it waits once more.

    Examples:
        >>> careful = StreamWriter(client, "careful", min_replicas=1)
        >>> try:
        ...     careful.enqueue({"order_id": 7})
        ... except NotReplicatedError as error:
        ...     print(error.confirmed, "of", error.min_replicas)
        0 of 1
    """

    def __init__(
        self,
        stream: str,
        *,
        confirmed: int,
        min_replicas: int,
        entry_ids: Sequence[str] | None = None,
        fsync: bool = False,
    ) -> None:
        self.confirmed = confirmed
        self.min_replicas = min_replicas
        self.entry_ids = None if entry_ids is None else tuple(entry_ids)
        counts = f"{confirmed} of min_replicas={min_replicas} replicas"
        if entry_ids is None:
            reason = f"nothing was sent: {counts} are connected"
        elif fsync:
            where = f"the primary's disk, or on replicas' disks: {counts}" if min_replicas else "disk"
            reason = f"messages were added, but are not known to be on {where}: a crash may lose them"
        else:
            reason = f"messages were added, but {counts} have them: a failover may lose them"
        super().__init__("WAITAOF" if fsync else "WAIT", stream=stream, group=None, reason=reason)


@dataclass(frozen=True, slots=True)
class MalformedEntry:
    """One entry that cannot become a message, as it came from the server.

    Examples:
        >>> config = QueueConfig("from-elsewhere", "billing", "worker-1")
        >>> client.xadd("from-elsewhere", {"not": "json"})
        b'1...-0'
        >>> try:
        ...     RedisStreamsQueue(client, config).read(block_ms=100)
        ... except MalformedEntryError as error:
        ...     error.entries[0].fields
        ((b'not', b'json'),)
    """

    id: str
    fields: tuple[tuple[bytes, bytes], ...]
    delivery_count: int
    reason: str
    #: Of an entry that a consumer of a later version can read: the delivery count to hand it back with.
    hand_back_count: int | None = None


class MalformedEntryError(QueueError):
    """A read met malformed entries; they stay pending until they are acked or become dead letters.

    `entries` are the malformed ones, `messages` the well-formed `QueueMessage`s of the same read:
    those were delivered too and are the caller's to handle.

    Examples:
        >>> client.xadd("orders", {"not": "json"})
        b'1...-0'
        >>> try:
        ...     queue.read(block_ms=100)
        ... except MalformedEntryError as error:
        ...     dropped = queue.ack_ids([entry.id for entry in error.entries])  # on purpose
    """

    def __init__(
        self,
        operation: str,
        *,
        stream: str,
        group: str,
        entries: Sequence[MalformedEntry],
        messages: Sequence[Any],
    ) -> None:
        self.entries = tuple(entries)
        self.messages = tuple(messages)
        first = self.entries[0]
        others = f" and {len(self.entries) - 1} more" if len(self.entries) > 1 else ""
        named = dict(first.fields)
        fields = repr(named if len(named) == len(first.fields) else list(first.fields))
        if len(fields) > 200:
            fields = f"{fields[:200]}…"
        super().__init__(
            operation,
            stream=stream,
            group=group,
            reason=(
                f"entry {first.id}{others} is malformed: {first.reason}; fields {fields}. "
                "It stays pending: ack it by id to drop it, or drain with max_deliveries for a dead letter"
            ),
        )


class TopicError(ConquietError):
    """A topic cannot be used as asked.

    Examples:
        >>> try:
        ...     Topics(client).create("shipments", partitions=99)
        ... except TopicError as error:
        ...     print(error)
        topic 'shipments' exists with 2 partitions, not 99; ...
    """

    def __init__(self, topic: str, problem: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} {problem}")


class PartitionBusyError(TopicError):
    """Another consumer owns the partition for the group; nothing was read.

    Examples:
        >>> try:
        ...     report = drain_partition(topic, 0, "couriers", ship, engine, DrainLimits(idle_ms=50))
        ... except PartitionBusyError as error:
        ...     print(f"partition {error.partition} has an owner")
    """

    def __init__(self, topic: str, *, partition: int, group: str) -> None:
        self.partition = partition
        self.group = group
        super().__init__(
            topic,
            f"has partition {partition} leased to another consumer of group {group!r}; `MqAdmin.owners` "
            "names it, and the partition is free when that one stops or its lease expires",
        )


class ConsumerBusyError(ConquietError):
    """Another drain runs under the same consumer name; this one begins no further message.

    Examples:
        >>> try:
        ...     report = drain(queue, bill, engine)
        ... except ConsumerBusyError as error:
        ...     print(f"another drain is {error.consumer}: try again in a minute")
    """

    def __init__(self, consumer: str, *, stream: str, group: str, free_in_s: float) -> None:
        self.consumer = consumer
        self.stream = stream
        self.group = group
        super().__init__(
            f"consumer {consumer!r} of group {group!r} is draining stream {stream!r} already; give each "
            f"drain its own consumer_name, or, if that one is dead, try again in {free_in_s:.0f} s"
        )


class LeaseLostError(ConquietError):
    """Another consumer may own the partition by now; nothing was settled, its messages are redelivered.

    Examples:
        >>> limits = DrainLimits(idle_ms=50)
        >>> try:
        ...     report = drain_partition(topic, 0, "couriers", ship, engine, limits)
        ... except LeaseLostError as error:  # it was frozen for longer than lease_ttl_ms
        ...     print("another consumer goes on with partition", error.partition)
    """

    def __init__(self, *, topic: str, group: str, partition: int, owner: str, epoch: int) -> None:
        self.topic = topic
        self.group = group
        self.partition = partition
        self.owner = owner
        self.epoch = epoch
        super().__init__(
            f"{owner!r} lost its lease (epoch {epoch}) on partition {partition} of topic {topic!r} "
            f"for group {group!r}; what it had not settled is redelivered to the new owner"
        )


class MessageRejectedError(ConquietError):
    """A handler returned a `Retry` or `DeadLetter` that cannot be carried out; its message stays pending.

    Examples:
        >>> retried = RedisStreamsQueue(client, QueueConfig("retried", "billing", "worker-1"))
        >>> entry_id = retried.enqueue({"order_id": 7})
        >>> try:
        ...     drain(retried, lambda msg, session: Retry(delay_ms=1_000), engine)
        ... except DrainError as error:
        ...     isinstance(error.failures[0].error, MessageRejectedError)
        True
    """

    def __init__(self, entry_id: str, *, stream: str, answer: object) -> None:
        self.entry_id = entry_id
        self.stream = stream
        self.answer = answer
        super().__init__(
            f"the handler of entry {entry_id} of stream {stream!r} returned {answer!r}: the message stays "
            "pending until this consumer drains again or it is claimed; scheduled retries need a topic"
        )


class PayloadTypeError(ConquietError, TypeError):
    """A value cannot be sent so that it comes back equal, or what was sent does not fit the reader's type.

    `path` leads to it, as `['lines'][3].price`; it is empty for the payload itself.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> Booking = make_dataclass("Booking", [("seats", int)])
        >>> queue.enqueue(Booking("two"))
        Traceback (most recent call last):
        conquiet.errors.PayloadTypeError: payload.seats is a str, no int; write int(value)
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"payload{path} {problem}")


class HandlerCancelledError(ConquietError):
    """An `async def` handler ended with a `CancelledError`: its message has failed, as by any other error."""


class DbError(ConquietError):
    """The transaction was not committed as asked; the message it belongs to must not be acked.

    Examples:
        >>> def bill_and_commit(msg, session):
        ...     session.execute(text("COMMIT"))  # refused: a DbError, and the message stays pending
    """


class DatabaseUnavailableError(DbError):
    """No connection could be opened, or the database refuses to write; the message has not failed.

    Examples:
        >>> waiting = RedisStreamsQueue(client, QueueConfig("waiting", "billing", "worker-1"))
        >>> entry_id = waiting.enqueue({"order_id": 7})
        >>> try:
        ...     drain(waiting, bill, create_engine("postgresql+psycopg://127.0.0.1:1/shop"))
        ... except DatabaseUnavailableError as error:
        ...     print("try again later:", error.drain_report.failed, "messages have failed")
        try again later: 0 messages have failed
    """


class WriteRefusedError(DatabaseUnavailableError):
    """The database answers, and refused what one message wrote: read-only, out of disk, a lock timeout."""


class InboxRowLockedError(WriteRefusedError):
    """Another worker is in the middle of the message, or was frozen there: its transaction is still open."""


class CommitUnknownError(DbError):
    """The commit was sent and not confirmed, as when the connection is lost: it may be committed or not."""


@dataclass(frozen=True, slots=True)
class DrainFailure:
    """One failed message and its error; pending in a plain stream, retried or a dead letter in a topic.

    Examples:
        >>> report = drain_stale(queue, bill, engine, min_idle_ms=0)
        >>> [(failure.id, failure.error) for failure in report.failures]
        []
    """

    id: str
    error: Exception


class DrainError(ConquietError):
    """A drain ran to its end with failed messages, all of them still pending.

    `report` is the `DrainReport`, `failures` has every failed entry id with its exception.

    Examples:
        >>> def fail(msg, session):
        ...     raise ValueError("no stock")
        >>> queue.enqueue({"order_id": 8})
        '1...-0'
        >>> try:
        ...     drain(queue, fail, engine)
        ... except DrainError as error:
        ...     print(error.report.failed, error.failures[0].error)
        1 no stock
    """

    def __init__(self, *, stream: str, group: str, report: Any, failures: Sequence[DrainFailure]) -> None:
        self.stream = stream
        self.group = group
        self.report = report
        self.failures = tuple(failures)
        first = self.failures[0]
        super().__init__(
            f"{len(self.failures)} messages of stream {stream!r} failed for group {group!r} and are pending; "
            f"the first is {first.id}: {text_of(first.error)}"
        )


class EmbeddedServerError(ConquietError):
    """The private server is not there: no binary, no start, or no clean stop.

    Examples:
        >>> try:
        ...     EmbeddedServer(binary="/not/there").start()
        ... except EmbeddedServerError:
        ...     print("no server")
        no server
    """

    def __init__(self, problem: str, *, facts: Mapping[str, object] | None = None) -> None:
        self.facts = dict(facts or {})
        shown = "".join(f"\n  {name}: {value}" for name, value in self.facts.items())
        super().__init__(problem + shown)


class SettingsError(ConquietError):
    """A setting cannot be used; `key` is its name, if it is about one."""

    def __init__(self, problem: str, *, key: str | None = None) -> None:
        self.key = key
        super().__init__(problem)


class MissingExtraError(ConquietError, ImportError):
    """A part of conquiet was used whose packages are not installed."""

    def __init__(self, part: str, *, missing: str, extra: str) -> None:
        self.missing = missing
        self.extra = extra
        super().__init__(f"{part} needs {missing}, which is not installed: pip install 'conquiet[{extra}]'")


def _rebuilt(kind: type[ConquietError], args: tuple[Any, ...], facts: dict[str, Any]) -> ConquietError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


def text_of(error: BaseException) -> str:
    """Type and sentence of any exception without passwords, even of one whose own `__str__` fails."""
    try:
        return mask(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 -- the user's class
        return type(error).__name__


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it; an exception of a user may be its own cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
