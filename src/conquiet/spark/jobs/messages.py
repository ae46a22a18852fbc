"""Rows as messages of a topic or stream, each with the name by which it is known if it is sent again."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.named_columns import check_columns, column
from conquiet.spark.jobs.plans import TargetPlan
from conquiet.spark.json_columns import json_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Beside the columns of a message.
_NAME = "conquiet_dedupe_id"


def messages_of(df: DataFrame, target: TargetPlan, *, is_of_totals: bool) -> DataFrame:
    """The DataFrame that `redis-stream` writes.

    Raises:
        JobError: a column is not there, or has a type that JSON has no word for.
    """
    check_columns(df, target.used)
    try:
        data = json_of(list(target.columns or df.columns), df.schema)
        name = _name_of_row(df, target, data, is_of_totals=is_of_totals)
    except TypeError as error:
        raise JobError(ExitCode.DATA, str(error)) from error
    columns = [data.alias("data")]
    if target.key is not None:
        columns.append(column(target.key).cast("string").alias("key"))
    if target.headers:
        pairs = [F.lit(part) for pair in target.headers for part in pair]
        columns.append(F.create_map(*pairs).alias("headers"))
    return df.select(*columns, *([] if name is None else [name.alias(_NAME)]))


def dedupe_options(messages: DataFrame, target: TargetPlan) -> dict[str, str]:
    """How the data source knows what it has added before."""
    if _NAME in messages.columns:
        return {"dedupeColumn": _NAME}
    return {"dedupeId": target.dedupe_id} if target.dedupe_id is not None else {}


def _name_of_row(df: DataFrame, target: TargetPlan, data: Column, *, is_of_totals: bool) -> Column | None:
    if target.dedupe_columns:
        return F.concat(F.lit(f"{target.dedupe_id or ''}:"), _name_by_columns(df, target.dedupe_columns))
    if is_of_totals:
        # No two totals of a write are alike, and a shuffle gives them in any order: so by what they say.
        return F.concat(F.lit(f"{target.dedupe_id or secrets.token_hex(10)}:"), F.sha2(data, 256))
    return None


def _name_by_columns(df: DataFrame, names: Sequence[str]) -> Column:
    # Rows without any value would all have one name, and all but the first would be dropped.
    is_nameless = reduce(and_, (column(name).isNull() for name in names))
    where = "column" if len(names) == 1 else "columns"
    refusal = F.raise_error(F.lit(f"a row has no value in the dedupe {where} {', '.join(names)}"))
    return F.when(is_nameless, refusal).otherwise(json_of(list(names), df.schema))
