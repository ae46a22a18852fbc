"""Rows of a type: checked when they are written and read, with the row and the column in the error."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import Any

from conquiet.errors import ConquietError, PayloadTypeError
from conquiet.payload import StandardCodec, as_json_object, encode_payload


class RowError(ConquietError):
    """A row cannot be published, or is not of the type that its reader asked for.

    Examples:
        >>> print(RowError("orders", row=3, column="cents", problem="is a set"))
        asset 'orders', row 3, column 'cents': is a set
    """

    def __init__(self, asset: str, *, row: int, column: str | None, problem: str) -> None:
        self.asset = asset
        self.row = row
        self.column = column
        where = f"row {row}" if column is None else f"row {row}, column {column!r}"
        super().__init__(f"asset {asset!r}, {where}: {problem}")


def row_type_of(annotation: Any) -> Any:
    """The type of the rows of `list[Order]`; `None` where the rows are plain dicts, or anything."""
    if typing.get_origin(annotation) is dict:
        # Of several partitions: {partition: list[Order]}.
        return row_type_of(typing.get_args(annotation)[1])
    if typing.get_origin(annotation) is not list:
        return None
    (row,) = typing.get_args(annotation)
    return None if row in (dict, Any) or typing.get_origin(row) is dict else row


def as_dicts(asset: str, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Dicts, dataclasses or models as what JSON can carry."""
    dicts: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        try:
            plain = as_json_object(row, None)
        except PayloadTypeError as error:
            raise RowError(asset, row=number, column=_column(error.path), problem=error.problem) from error
        if not isinstance(plain, dict):
            problem = f"expected a dict, a dataclass or a model, got {type(row).__name__}"
            raise RowError(asset, row=number, column=None, problem=problem)
        _check(asset, number, plain)
        dicts.append(plain)
    return dicts


def typed(asset: str, rows: Sequence[dict[str, Any]], row_type: Any) -> list[Any]:
    """The rows as objects of the type.

    Raises:
        RowError: one of them is not.
    """
    codec, read = StandardCodec(), []
    for number, row in enumerate(rows):
        try:
            read.append(codec.decode(row_type, row))
        except PayloadTypeError as error:
            raise RowError(asset, row=number, column=_column(error.path), problem=error.problem) from None
    return read


def _column(path: str) -> str | None:
    """The first step of a path, as the name of a column."""
    return re.split(r"[.\[\]']+", path)[1] if path else None


def _check(asset: str, number: int, row: dict[str, Any]) -> None:
    try:
        encode_payload(row)
    except (TypeError, ValueError) as whole:
        for column, value in row.items():
            try:
                encode_payload({str(column): value})
            except (TypeError, ValueError) as error:
                raise RowError(asset, row=number, column=str(column), problem=str(error)) from error
        raise RowError(asset, row=number, column=None, problem=str(whole)) from whole
