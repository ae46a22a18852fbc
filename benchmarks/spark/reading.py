"""Reading a million rows."""

from __future__ import annotations

from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Comparison, Measurement
from benchmarks.spark.session import ROWS, open_session
from benchmarks.spark.tuple_source import TupleSource
from benchmarks.spark.work import SparkWork, filled_stream, load, use_all

_PAGE = 1_000

#: Spark's JVM compiles its hot code during the first of them.
_WARM_ROUNDS = 9


def plain_loop(work: SparkWork) -> None:
    """One process, no Spark: XRANGE, 1,000 entries at a time, each as an id and a text."""
    start, seen = "-", 0
    while entries := work.client.xrange(work.stream, start, "+", count=_PAGE):
        rows = [(entry_id.decode(), fields[b"data"].decode()) for entry_id, fields in entries]
        seen += len(rows)
        start = f"({rows[-1][0]}"
    _expect_all(work, seen)


def bare_loop(work: SparkWork) -> None:
    """As `plain_loop`, and leaves the entries as redis-py returns them."""
    start, seen = "-", 0
    while entries := work.client.xrange(work.stream, start, "+", count=_PAGE):
        seen += len(entries)
        start = f"({entries[-1][0].decode()}"
    _expect_all(work, seen)


def tuple_source(work: SparkWork) -> None:
    """A data source over the same id ranges whose rows are tuples."""
    open_session().dataSource.register(TupleSource)
    use_all(load(work, "redis-stream-tuples"))


def read_all(work: SparkWork) -> None:
    use_all(load(work))


def read_ids_and_data(work: SparkWork) -> None:
    reader = open_session().read.format("redis-stream").schema("id string, data string")
    use_all(reader.options(url=work.url, stream=work.stream).load())


def _expect_all(work: SparkWork, seen: int) -> None:
    if seen != work.rows:
        raise BenchmarkError(f"entries: {seen} instead of {work.rows}")


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="read / data source with row tuples",
        prepare=filled_stream,
        raw=tuple_source,
        ours=read_all,
        messages=ROWS,
        bar=1.1,
        rounds=3,
    ),
    Comparison(
        name="read / redis-py XRANGE loop of one process",
        prepare=filled_stream,
        raw=plain_loop,
        ours=read_all,
        messages=ROWS,
        bar=2.0,
        rounds=_WARM_ROUNDS,
    ),
    Comparison(
        name="read of id and data alone / the same loop",
        prepare=filled_stream,
        raw=plain_loop,
        ours=read_ids_and_data,
        messages=ROWS,
        rounds=5,
    ),
    Comparison(
        name="read of id and data alone / a loop that does nothing with what it gets",
        prepare=filled_stream,
        raw=bare_loop,
        ours=read_ids_and_data,
        messages=ROWS,
        rounds=5,
    ),
]
