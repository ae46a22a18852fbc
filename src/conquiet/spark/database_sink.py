"""Micro-batches into a database: a batch is divided by its rows, and each part is handled once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 -- as its docs call it
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from conquiet.arguments import check_positive_int
from conquiet.consume import DeadLetter, Retry, check_handler, load_handler
from conquiet.consume.handling import MessageHandling
from conquiet.db import DbSession, Inbox
from conquiet.errors import ConquietError
from conquiet.spark.json_columns import JSON_OPTIONS, column_named
from conquiet.spark.task_context import QUERY_ID, current_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Called with the rows of one part of a batch, as dicts, and the transaction that they belong to.
BatchHandler = Callable[[Iterator[dict[str, Any]], DbSession], None]

#: Beside the columns of the batch: the part that a row belongs to.
_PART = "conquiet part"


def drain_batch(
    handler: BatchHandler | str,
    database_url: str,
    *,
    name: str,
    parts: int = 8,
    by: Sequence[str] | None = None,
    inbox_table: str = "conquiet_inbox",
) -> Callable[[DataFrame, int], None]:
    """What `writeStream.foreachBatch` needs to handle each part of a batch in one transaction.

    The part of a row follows from the row alone, and the transaction also has a row of the inbox that names
    query, batch and part. So a batch that Spark runs again changes nothing, however its rows were divided
    before and are divided now.

    Args:
        handler: a function, or `package.module:function`.
        name: of this query; with another one, or with a new checkpoint, every batch is new. On Spark Connect
            it is also the `queryName`.
        parts: how many transactions a batch has at most; a batch that has begun keeps its number.
        by: columns; rows that are equal in them belong to one part. Without it `stream` and `id` where the
            batch has them, else all columns.

    Raises:
        TypeError: the handler would not run when it is called; of a reference, this fails the batch.

    Examples:
        >>> database_url = "postgresql+psycopg://localhost/shop"
        >>> handle_batch = drain_batch("billing:book_rows", database_url, name="billing")
        >>> source = spark.readStream.format("redis-stream").options(url=server.url, topic="shipments")
        >>> writer = source.load().writeStream.foreachBatch(handle_batch)  # then .start()
    """
    check_positive_int("parts", parts)
    if not isinstance(handler, str):
        check_handler(handler)

    def drain(df: DataFrame, batch_id: int) -> None:
        query = _query_of(df, name)
        stream = f"spark:{name}:{batch_id}" if query is None else f"spark:{query}:{name}:{batch_id}"
        names = list(by or (("stream", "id") if _has_ids(df) else df.columns))
        count = _recorded_parts(Inbox(table=inbox_table), database_url, _Division.of(stream, parts, names))

        def handle_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            call = load_handler(handler) if isinstance(handler, str) else handler
            check_handler(call)
            filled = (batch for batch in batches if batch.num_rows)
            first = next(filled, None)
            if first is None:
                return
            number = current_task().partitionId()
            part = PartMessage(stream, f"part {number} of {count}", number, chain([first], filled))
            # An inbox of the task's own: what the driver has cannot be sent to it.
            engine, inbox = _engine(database_url), Inbox(table=inbox_table)
            handling = MessageHandling(lambda msg, session: call(msg.payload, session), engine, inbox)
            try:
                outcome = handling.handle(part)
            finally:
                handling.release()
                engine.dispose()
            if isinstance(outcome, Retry | DeadLetter):
                raise ConquietError(
                    f"the handler answered {outcome!r} for {part.id} of {stream}: a batch is "
                    "handled as a whole; raise an error to have Spark run it again"
                )
            yield pa.record_batch([pa.array([part.read], pa.int64())], names=["rows"])

        # An action that returns a number for each part, and moves the rows as Arrow batches.
        _divided(df, count, names).mapInArrow(handle_part, "rows long").collect()

    return drain


@dataclass(slots=True)
class PartMessage:
    """One part of one batch, as the message that `MessageHandling` handles."""

    stream: str
    id: str
    number: int
    batches: Iterator[pa.RecordBatch]
    group: str = "drain_batch"
    attempt: int = 1
    #: Rows that the handler has taken so far.
    read: int = 0

    @property
    def identity(self) -> tuple[str, str]:
        """By which the inbox knows it: the batch and its part."""
        return self.stream, self.id

    @property
    def payload(self) -> Iterator[dict[str, Any]]:
        """The rows, one after the other."""
        for batch in self.batches:
            if set(batch.column(_PART).to_pylist()) != {self.number}:
                # Under the wrong name it would be skipped, or handled twice, when the batch is run again.
                raise ConquietError(f"Spark has moved rows of other parts to {self.id} of {self.stream}")
            self.read += batch.num_rows
            yield from batch.drop_columns([_PART]).to_pylist()


@dataclass(frozen=True, slots=True)
class _Division:
    """How a batch was divided when it was begun: how many parts, by which columns; as a row of the inbox."""

    stream: str
    id: str
    names: Sequence[str]
    group: str = "drain_batch"
    attempt: int = 1

    @classmethod
    def of(cls, stream: str, parts: int, names: Sequence[str]) -> _Division:
        digest = blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()
        return cls(stream, f"{parts} by {digest}", names)

    @property
    def identity(self) -> tuple[str, str]:
        return self.stream, "parts"


def _query_of(df: DataFrame, name: str) -> str | None:
    """The id that a query has from its checkpoint; `None` outside of a streaming query.

    Raises:
        ConquietError: on Spark Connect no query that runs has the name.
    """
    if not type(df).__module__.startswith("pyspark.sql.connect."):
        query: str | None = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        return query
    # There the function runs beside the query, in a process that knows the batch and the session alone.
    ids = [str(query.id) for query in df.sparkSession.streams.active if query.name == name]
    if len(ids) != 1:
        raise ConquietError(
            f"on Spark Connect drain_batch knows its query by its name: write .queryName({name!r}), which "
            f"{len(ids)} active queries have"
        )
    return ids[0]


def _has_ids(df: DataFrame) -> bool:
    return {"stream", "id"} <= set(df.columns)


def _divided(df: DataFrame, parts: int, names: Sequence[str]) -> DataFrame:
    row = F.to_json(F.struct(*(column_named(name) for name in names)), JSON_OPTIONS)
    # As Spark divides: `payload` checks that both have come to the same answer.
    divided = df.withColumn(_PART, F.pmod(F.hash(row), F.lit(parts))).repartition(parts, row)
    if not _has_ids(df):
        return divided
    # A shuffle forgets in which order rows came.
    numbers = [F.lpad(F.split_part(F.col("id"), F.lit("-"), F.lit(place)), 20, "0") for place in (1, 2)]
    return divided.sortWithinPartitions("stream", *numbers)


def _recorded_parts(inbox: Inbox, database_url: str, division: _Division) -> int:
    """The number of parts with which the batch was begun; that of `division` if it is new.

    Raises:
        ConquietError: it was begun with other columns: a row would be in another part than before.
    """
    engine = _engine(database_url)
    inbox.create_table(engine)
    with DbSession(engine) as session:
        known = inbox.recorded_id(session, division)
        if known is None and inbox.record(session, division) is None:
            raise ConquietError(
                f"the database refused the inbox row of {division.stream}: another run of it has begun "
                "just now"
            )
    parts, _, by = (division.id if known is None else known).partition(" by ")
    # An earlier version has recorded the number alone.
    if by not in ("", division.id.partition(" by ")[2]):
        raise ConquietError(
            f"{division.stream} was begun with rows divided by other columns than "
            f"{', '.join(division.names)}: let it end with the query as it was, or give `by` those columns"
        )
    return int(parts)


def _engine(database_url: str) -> Engine:
    return create_engine(database_url, poolclass=NullPool)
