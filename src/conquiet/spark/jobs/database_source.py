"""Tables and queries of a database through SQLAlchemy, without a jar: each task reads a part by its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType
from sqlalchemy import (
    Engine,
    MetaData,
    Select,
    Table,
    and_,
    create_engine,
    func,
    literal_column,
    or_,
    select,
    text,
)
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from conquiet.spark.jobs.database_types import plain_value, type_of_column, type_of_values
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.plans import SourcePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Rows that are in a task's memory at once.
_PAGE = 10_000
#: Rows of a query that are looked at to learn its types.
_LOOK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRows:
    """A table or a query, as every task needs to know it."""

    url: str = field(repr=False)
    table: str | None
    query: str | None
    partition_column: str | None

    def open(self) -> Engine:
        """An engine that keeps no connection."""
        return create_engine(self.url, poolclass=NullPool)

    def selected(self, engine: Engine) -> tuple[Select[Any], Any]:
        """The SELECT of all rows, and the column that divides them."""
        if self.table is not None:
            schema, _, name = self.table.rpartition(".")
            table = Table(name, MetaData(), schema=schema or None, autoload_with=engine)
            if self.partition_column is not None and self.partition_column not in table.c:
                raise JobError(ExitCode.DATA, f"table {self.table!r} has no column {self.partition_column!r}")
            return select(table), table.c[self.partition_column] if self.partition_column else None
        rows = text(f"({self.query}) AS conquiet_rows")
        quoted = engine.dialect.identifier_preparer.quote(self.partition_column or "")
        column: Any = literal_column(f"conquiet_rows.{quoted}") if self.partition_column else None
        return select(literal_column("*")).select_from(rows), column


def rows_of_database(spark: SparkSession, source: SourcePlan, url: str) -> DataFrame:
    """The rows, in as many tasks as asked for.

    Raises:
        JobError: the table is not there, the query is wrong, or a column cannot be read.
    """
    rows = DatabaseRows(
        url=url, table=source.table, query=source.query, partition_column=source.partition_column
    )
    engine = rows.open()
    try:
        schema = _schema_of(rows, engine)
        bounds = _bounds(rows, engine, source.tasks)
    except NoSuchTableError as error:
        raise JobError(ExitCode.DATA, f"the database has no table {source.table!r}") from error
    except SQLAlchemyError as error:
        raise JobError(ExitCode.DATA, f"{source.name!r} cannot be read: {error}") from error
    parts = spark.range(0, len(bounds), 1, len(bounds))
    return parts.mapInArrow(_reading(rows, schema, bounds), schema)


def _schema_of(rows: DatabaseRows, engine: Engine) -> StructType:
    selected, _ = rows.selected(engine)
    if rows.table is not None:
        columns = [
            (column.name, type_of_column(column.name, column.type)) for column in selected.selected_columns
        ]
    else:
        with engine.connect() as connection:
            result = connection.execute(selected.limit(_LOOK))
            names, first = list(result.keys()), result.all()
        columns = [(name, type_of_values(name, [row[at] for row in first])) for at, name in enumerate(names)]
    return StructType([StructField(name, kind) for name, kind in columns])


def _bounds(rows: DatabaseRows, engine: Engine, tasks: int) -> list[tuple[Any, Any]]:
    selected, column = rows.selected(engine)
    if column is None:
        return [(None, None)]
    numbers = selected.with_only_columns(func.min(column), func.max(column), maintain_column_froms=True)
    with engine.connect() as connection:
        least, most = connection.execute(numbers).one()
    if least is None:
        return [(None, None)]
    if isinstance(least, str | bytes) or not hasattr(least, "__int__"):
        raise JobError(ExitCode.DATA, f"column {rows.partition_column!r} has no numbers, but {least!r:.50}")
    first, span = int(least), int(most) - int(least) + 1
    cuts = sorted({first + span * part // tasks for part in range(1, tasks)} - {first})
    # Open at both ends: the outermost tasks also take what is added meanwhile, the first one the nulls.
    return list(zip([None, *cuts], [*cuts, None], strict=True))


def _reading(
    rows: DatabaseRows, schema: StructType, bounds: list[tuple[Any, Any]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from read_part(rows, schema, *bounds[part])

    return read


def read_part(rows: DatabaseRows, schema: StructType, first: Any, end: Any) -> Iterator[pa.RecordBatch]:
    """The rows from one bound to before the other; runs in a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema)
    engine = rows.open()
    selected, column = rows.selected(engine)
    if end is not None:
        is_before = column < end
        selected = selected.where(or_(is_before, column.is_(None)) if first is None else is_before)
    if first is not None:
        selected = selected.where(and_(column >= first))
    with engine.connect().execution_options(stream_results=True, yield_per=_PAGE) as connection:
        for page in connection.execute(selected).partitions(_PAGE):
            yield _batch(page, wanted)


def _batch(page: Any, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = []
    for at, wanted in enumerate(schema):
        values = [plain_value(row[at]) for row in page]
        try:
            arrays.append(pa.array(values, wanted.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(
                f"column {wanted.name!r} was taken for {wanted.type}, and some value is not: {error}; "
                "cast it in a --query"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
