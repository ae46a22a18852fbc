"""Tables and queries of a database through SQLAlchemy, without a jar: each task reads a part by its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType
from sqlalchemy import Engine, MetaData, Select, Table, create_engine, func, literal_column, or_, select, text
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
#: Rows of a query from which its types are learned.
_FIRST_ROWS = 1_000

#: A part of the rows: from this value of the partition column to before that one; `None` is open.
Bounds = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRows:
    """A table or a query, as every task needs to know it."""

    source: SourcePlan
    url: str = field(repr=False)

    def open(self) -> Engine:
        """An engine that keeps no connection."""
        return create_engine(self.url, poolclass=NullPool)

    def selected(self, engine: Engine) -> tuple[Select[Any], Any]:
        """The SELECT of all rows, and the column that divides them."""
        source, by = self.source, self.source.partition_column
        if source.table is not None:
            schema, _, name = source.table.rpartition(".")
            table = Table(name, MetaData(), schema=schema or None, autoload_with=engine)
            if by is not None and by not in table.c:
                raise JobError(ExitCode.DATA, f"table {source.table!r} has no column {by!r}")
            return select(table), table.c[by] if by else None
        rows = text(f"({source.query}) AS conquiet_rows")
        quoted = engine.dialect.identifier_preparer.quote(by or "")
        column: Any = literal_column(f"conquiet_rows.{quoted}") if by else None
        return select(literal_column("*")).select_from(rows), column

    def schema(self, engine: Engine) -> StructType:
        """Spark's types for the columns."""
        selected, _ = self.selected(engine)
        if self.source.table is not None:
            columns = selected.selected_columns
            return StructType([StructField(one.name, type_of_column(one.name, one.type)) for one in columns])
        with engine.connect() as connection:
            result = connection.execute(selected.limit(_FIRST_ROWS))
            names, rows = list(result.keys()), result.all()
        kinds = [type_of_values(name, [row[at] for row in rows]) for at, name in enumerate(names)]
        return StructType([StructField(name, kind) for name, kind in zip(names, kinds, strict=True)])

    def parts(self, engine: Engine) -> list[Bounds]:
        """The bounds of as many parts of equal width as tasks are asked for."""
        tasks = self.source.tasks
        selected, column = self.selected(engine)
        if column is None:
            return [(None, None)]
        numbers = selected.with_only_columns(func.min(column), func.max(column), maintain_column_froms=True)
        with engine.connect() as connection:
            least, most = connection.execute(numbers).one()
        if least is None:
            return [(None, None)]
        if isinstance(least, str | bytes) or not hasattr(least, "__int__"):
            name = self.source.partition_column
            raise JobError(ExitCode.DATA, f"column {name!r} has no numbers, but {least!r:.50}")
        first, span = int(least), int(most) - int(least) + 1
        cuts = sorted({first + span * part // tasks for part in range(1, tasks)} - {first})
        # Open at both ends: the outermost tasks also take what is added meanwhile, the first one the nulls.
        return list(zip([None, *cuts], [*cuts, None], strict=True))

    def read(self, schema: StructType, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        """The rows of one part; runs in a task."""
        from pyspark.sql.pandas.types import to_arrow_schema

        (first, end), wanted, engine = bounds, to_arrow_schema(schema), self.open()
        selected, column = self.selected(engine)
        if end is not None:
            is_before = column < end
            selected = selected.where(or_(is_before, column.is_(None)) if first is None else is_before)
        if first is not None:
            selected = selected.where(column >= first)
        with engine.connect().execution_options(stream_results=True, yield_per=_PAGE) as connection:
            for page in connection.execute(selected).partitions(_PAGE):
                yield _batch_of(page, wanted)


def rows_of_database(spark: SparkSession, source: SourcePlan, url: str) -> DataFrame:
    """The rows, in as many tasks as asked for.

    Raises:
        JobError: the table is not there, the query is wrong, or a column cannot be read.
    """
    rows = DatabaseRows(source=source, url=url)
    engine = rows.open()
    try:
        schema, parts = rows.schema(engine), rows.parts(engine)
    except NoSuchTableError as error:
        raise JobError(ExitCode.DATA, f"the database has no table {source.table!r}") from error
    except SQLAlchemyError as error:
        raise JobError(ExitCode.DATA, f"{source.name!r} cannot be read: {error}") from error

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from rows.read(schema, parts[part])

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, schema)


def _batch_of(page: Any, schema: pa.Schema) -> pa.RecordBatch:
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
