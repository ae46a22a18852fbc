"""RedisStreamIOManager: an asset's rows as the messages of a stream, and back."""

# No `from __future__ import annotations` here: Dagster reads the types of the fields.

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_origin

import dagster as dg
from pydantic import Field

from conquiet.queue import StreamWriter
from dagster_conquiet.resources import RedisStreamsResource
from dagster_conquiet.steps.metadata import id_range, page_link
from dagster_conquiet.steps.rows import read_rows, remember_rows, trim_before
from dagster_conquiet.steps.runs import runs_retried_by
from dagster_conquiet.steps.typed_rows import as_dicts, row_type_of, typed


class RedisStreamIOManager(dg.ConfigurableIOManager):
    """Publishes the rows of an asset, one message each, and reads the last materialisation's rows back.

    The stream belongs to the asset, or to the partition of the asset. A row is added at least once; a retry
    of the step, or of its run, adds only what its earlier attempts did not.

    Examples:
        >>> redis_streams = RedisStreamsResource(url=dg.EnvVar("REDIS_URL"))
        >>> resources = {"io_manager": RedisStreamIOManager(redis_streams=redis_streams, keep="last")}
    """

    redis_streams: dg.ResourceDependency[RedisStreamsResource]
    prefix: str = Field(
        default="assets",
        description="The stream of `shop/orders` is `{prefix}:shop:orders`, that of its partition `mo` "
        "`{prefix}:shop:orders@mo`.",
    )

    keep: Literal["all", "last"] = Field(
        default="all",
        description='"last" trims what earlier materialisations published, once the new rows are stored; not '
        "for streams that consumer groups read.",
    )

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Publish a list of dicts, dataclasses or pydantic models, or a pandas DataFrame.

        Of several partitions, a dict with one of these for each partition key.

        Raises:
            RowError: a row cannot be published; none of them is.
        """
        partitions = list(context.asset_partition_keys) if context.has_asset_partitions else [None]
        # Of a range of one partition it may be either.
        if isinstance(obj, Mapping) and obj.keys() == set(partitions):
            published = {partition: _rows_of(obj[partition], context) for partition in partitions}
        elif len(partitions) == 1:
            published = {partitions[0]: _rows_of(obj, context)}
        else:
            raise TypeError(
                f"asset {context.asset_key.to_user_string()!r} is materialised for {len(partitions)} "
                "partitions at once: it must return a dict with the rows of each, by its partition key"
            )
        step = context.step_context
        *_, first_run = [step.run_id, *runs_retried_by(step.dagster_run, step.instance)]
        work = f"{first_run}.{context.asset_key.to_user_string()}"
        ids: dict[str | None, list[str]] = {}
        with self.redis_streams.connect() as client:
            for partition, rows in published.items():
                stream = self._stream(context.asset_key, partition)
                of_partition = StreamWriter(client, stream).enqueue_once(rows, dedupe_id=work)
                remember_rows(client, stream, of_partition)
                if self.keep == "last":
                    trim_before(client, stream, of_partition)
                ids[partition] = of_partition
        if len(partitions) == 1:
            context.add_output_metadata(self._metadata(context.asset_key, partitions[0], ids[partitions[0]]))
            return
        # What is said of all would be plotted as if each of them had it.
        for partition in partitions:
            metadata = self._metadata(context.asset_key, partition, ids[partition])
            step.add_asset_metadata(metadata, asset_key=context.asset_key, partition_key=partition)
        context.add_output_metadata({"rows_in_all_partitions": sum(map(len, ids.values()))})

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows as a list of dicts, of objects for `list[Order]`, or as an annotated DataFrame.

        Of several partitions, or annotated as one, a dict with one of these for each partition key.

        Raises:
            RowsMissingError: some rows are no longer in the stream, or others were written between them.
            RowError: a row is not of the type of the annotation.
        """
        partitions = list(context.asset_partition_keys) if context.has_asset_partitions else [None]
        with self.redis_streams.connect() as client:
            loaded: dict[str | None, Any] = {
                partition: read_rows(client, self._stream(context.asset_key, partition))
                for partition in partitions
            }
        wanted = context.dagster_type.typing_type
        if getattr(wanted, "__name__", "") == "DataFrame" and wanted.__module__.startswith("pandas"):
            import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own

            loaded = {partition: pd.DataFrame(rows) for partition, rows in loaded.items()}
        elif (row_type := row_type_of(wanted)) is not None:
            name = context.asset_key.to_user_string()
            loaded = {partition: typed(name, rows, row_type) for partition, rows in loaded.items()}
        is_single = len(partitions) == 1 and (partitions[0] is None or get_origin(wanted) is not dict)
        return loaded[partitions[0]] if is_single else loaded

    def _metadata(self, key: dg.AssetKey, partition: str | None, ids: Sequence[str]) -> dict[str, Any]:
        stream = self._stream(key, partition)
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        rows = {"stream": stream, "dagster/row_count": len(ids)}
        return {**rows, **page_link(stream), **id_range(first, last)}

    def _stream(self, key: dg.AssetKey, partition: str | None) -> str:
        of_partition = "" if partition is None else f"@{_escaped(partition)}"
        return ":".join([self.prefix, *map(_escaped, key.path)]) + of_partition


def _escaped(part: str) -> str:
    # As in a URL, what divides parts and what Redis Cluster takes for a tag: no two assets share a stream.
    return "".join(f"%{ord(character):02X}" if character in "%:@{}" else character for character in part)


def _rows_of(obj: Any, context: dg.OutputContext) -> list[dict[str, Any]]:
    if hasattr(obj, "to_dict") and hasattr(obj, "columns"):
        # A missing value is None in JSON; what else JSON cannot carry is refused when it is enqueued.
        complete = obj.astype(object).where(obj.notna(), None)
        obj = [{str(name): value for name, value in row.items()} for row in complete.to_dict("records")]
    is_rows = isinstance(obj, Iterable) and not isinstance(obj, (str, bytes, Mapping))
    if not is_rows:
        raise TypeError(
            f"asset {context.asset_key.to_user_string()!r} must return a list of dicts or a DataFrame to be "
            f"published, got {type(obj).__name__}"
        )
    return as_dicts(context.asset_key.to_user_string(), list(obj))
