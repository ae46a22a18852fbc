"""RedisStreamIOManager: rows out and back, published once however often a step is retried."""

# No `from __future__ import annotations` here: Dagster reads the types of the functions.
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest

from conquiet.queue import StreamWriter
from dagster_conquiet import RedisStreamIOManager, RowError, RowsMissingError
from dagster_conquiet.steps.rows import read_rows, remember_rows
from tests.measured_client import MeasuredClient

ROWS = [{"order": n, "city": "Köln"} for n in range(5)]


@dataclass
class Order:
    """A row."""

    number: int
    at: datetime


@pytest.fixture
def prefix():
    """Streams that no other test has."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def io(prefix, resources):
    manager = RedisStreamIOManager(redis_streams=resources["redis_streams"], prefix=prefix)
    return {"io_manager": manager}


def test_a_list_of_rows_is_published_and_read_back(io, prefix, instance, client):
    read = []

    @dg.asset
    def orders() -> list[dict]:
        return ROWS

    @dg.asset
    def report(orders: list[dict]) -> None:
        read.extend(orders)

    result = dg.materialize([orders, report], resources=io, instance=instance, selection=[orders])
    dg.materialize([orders, report], resources=io, instance=instance, selection=[report])

    assert read == ROWS
    assert client.xlen(f"{prefix}:orders") == 5
    metadata: Any = result.asset_materializations_for_node("orders")[0].metadata
    assert metadata["dagster/row_count"].value == 5
    assert metadata["first_id"].value < metadata["last_id"].value


def test_a_data_frame_is_published_and_read_back_as_one(io, instance):
    frames = []

    @dg.asset
    def orders() -> pd.DataFrame:
        return pd.DataFrame({"order": [1, 2], "cents": [10.5, None], "city": ["Köln", None]})

    @dg.asset
    def report(orders: pd.DataFrame) -> None:
        frames.append(orders)

    dg.materialize([orders, report], resources=io, instance=instance)

    assert frames[0]["order"].tolist() == [1, 2]
    assert frames[0]["cents"].tolist()[0] == 10.5
    assert frames[0]["cents"].isna().tolist() == [False, True]
    assert frames[0]["city"].tolist() == ["Köln", None]


def test_the_last_materialisation_is_what_is_read(io, instance):
    read = []

    @dg.asset(config_schema={"first": int})
    def orders(context) -> list[dict]:
        return [{"n": context.op_execution_context.op_config["first"] + n} for n in range(2)]

    @dg.asset
    def report(orders: list[dict]) -> None:
        read.append(orders)

    for first in (0, 10):
        config = {"ops": {"orders": {"config": {"first": first}}}}
        dg.materialize([orders, report], resources=io, instance=instance, run_config=config)

    assert read == [[{"n": 0}, {"n": 1}], [{"n": 10}, {"n": 11}]]


def publishing():
    """An asset of rows, and one behind it that fails in the first run."""

    @dg.asset
    def orders() -> list[dict]:
        return ROWS

    @dg.asset(deps=[orders])
    def fails_once(context: dg.AssetExecutionContext) -> None:
        if "dagster/parent_run_id" not in context.run.tags:
            raise RuntimeError("the first run fails")

    return [orders, fails_once]


def test_a_retried_run_publishes_no_row_twice(io, prefix, instance, client):
    assets = publishing()
    first = dg.materialize(assets, resources=io, instance=instance, raise_on_error=False)
    tags = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}

    second = dg.materialize(assets, resources=io, instance=instance, tags=tags)

    assert second.success
    assert client.xlen(f"{prefix}:orders") == 5


def test_a_row_that_json_cannot_carry_publishes_nothing(io, prefix, instance, client):
    @dg.asset
    def orders() -> list[dict]:
        return [{"n": 1}, {"n": float("nan")}]

    with pytest.raises(RowError, match=r"asset 'orders', row 1, column 'n': .*nan, which JSON does not have"):
        dg.materialize([orders], resources=io, instance=instance)

    assert client.xlen(f"{prefix}:orders") == 0


def test_what_has_no_rows_is_refused_with_the_name_of_the_asset(io, instance):
    @dg.asset
    def orders():
        return "not rows"

    with pytest.raises(TypeError, match="asset 'orders' must return a list of dicts or a DataFrame"):
        dg.materialize([orders], resources=io, instance=instance)


def test_a_record_of_rows_that_cannot_be_read_is_rows_that_are_missing(io, prefix, instance, client):
    @dg.asset
    def orders() -> list[dict]:
        return ROWS

    @dg.asset
    def report(orders: list[dict]) -> None: ...

    dg.materialize([orders, report], resources=io, instance=instance, selection=[orders])
    client.set(f"{{{prefix}:orders}}:@rows", '{"pages":[]}')

    with pytest.raises(RowsMissingError, match="nothing was published yet"):
        dg.materialize([orders, report], resources=io, instance=instance, selection=[report])


def test_rows_that_were_trimmed_are_missed_and_not_taken_for_few(io, prefix, instance, client):
    @dg.asset
    def orders() -> list[dict]:
        return ROWS

    @dg.asset
    def report(orders: list[dict]) -> None: ...

    dg.materialize([orders, report], resources=io, instance=instance, selection=[orders])
    client.xtrim(f"{prefix}:orders", maxlen=2, approximate=False)

    with pytest.raises(RowsMissingError, match="has 2 rows where 5 rows were published"):
        dg.materialize([orders, report], resources=io, instance=instance, selection=[report])


def test_assets_and_partitions_whose_names_look_alike_share_no_stream(io, prefix, instance, client):
    parts = dg.StaticPartitionsDefinition(["y", "y:z", "y@z", "rows"])

    @dg.asset(partitions_def=parts)
    def x(context: dg.AssetExecutionContext) -> list[dict]:
        return [{"from": f"x, partition {context.partition_key}"}]

    @dg.asset(key=["x", "y"])
    def x_y() -> list[dict]:
        return [{"from": "x/y"}]

    @dg.asset(key=["x", "y", "z"])
    def x_y_z() -> list[dict]:
        return [{"from": "x/y/z"}]

    @dg.asset(key=["x", "y", "rows"])
    def x_y_rows() -> list[dict]:
        return [{"from": "x/y/rows"}]

    for part in parts.get_partition_keys():
        dg.materialize([x], resources=io, instance=instance, partition_key=part)
    dg.materialize([x_y, x_y_z, x_y_rows], resources=io, instance=instance)

    names = ("x@y", "x@y%3Az", "x@y%40z", "x@rows", "x:y", "x:y:z", "x:y:rows")
    assert [client.xlen(f"{prefix}:{name}") for name in names] == [1] * len(names)


def test_each_partition_has_its_own_rows(io, instance):
    read = []
    days = dg.StaticPartitionsDefinition(["mo", "tu"])

    @dg.asset(partitions_def=days)
    def orders(context: dg.AssetExecutionContext) -> list[dict]:
        return [{"day": context.partition_key}]

    @dg.asset
    def week(orders: dict[str, list[dict]]) -> None:
        read.append(orders)

    for day in ("mo", "tu"):
        dg.materialize([orders], resources=io, instance=instance, partition_key=day)
    dg.materialize([orders, week], resources=io, instance=instance, selection=[week])

    assert read == [{"mo": [{"day": "mo"}], "tu": [{"day": "tu"}]}]


def test_rows_of_a_type_are_written_and_read_as_such(io, instance):
    read = []

    @dg.asset
    def orders() -> list[Order]:
        return [Order(number=1, at=datetime(2026, 1, 1, tzinfo=UTC))]

    @dg.asset
    def report(orders: list[Order]) -> None:
        read.extend(orders)

    dg.materialize([orders, report], resources=io, instance=instance)

    assert read == [Order(number=1, at=datetime(2026, 1, 1, tzinfo=UTC))]


def test_a_row_of_another_type_is_refused_with_its_row_and_column_and_without_its_value(io, instance):
    @dg.asset
    def orders() -> list[dict]:
        return [{"number": 1, "at": "2026-01-01"}, {"number": "secret", "at": "2026-01-01"}]

    @dg.asset
    def report(orders: list[Order]) -> None: ...

    with pytest.raises(RowError, match="asset 'orders', row 1, column 'number'") as caught:
        dg.materialize([orders, report], resources=io, instance=instance)

    assert "secret" not in str(caught.value)


def test_a_range_of_partitions_is_published_by_partition(io, prefix, instance, client):
    days = dg.StaticPartitionsDefinition(["mo", "tu"])

    @dg.asset(partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def orders(context: dg.AssetExecutionContext) -> dict[str, list[dict]]:
        return {day: [{"day": day}] for day in context.partition_keys}

    job = dg.define_asset_job("backfill", [orders])
    defs = dg.Definitions(assets=[orders], jobs=[job], resources=io)
    tags = {"dagster/asset_partition_range_start": "mo", "dagster/asset_partition_range_end": "tu"}

    result = defs.resolve_job_def("backfill").execute_in_process(instance=instance, tags=tags)

    assert [client.xlen(f"{prefix}:orders@{day}") for day in ("mo", "tu")] == [1, 1]
    seen = {event.partition: event.metadata for event in result.asset_materializations_for_node("orders")}
    assert {day: metadata["stream"].value for day, metadata in seen.items()} == {
        day: f"{prefix}:orders@{day}" for day in ("mo", "tu")
    }
    assert [metadata["dagster/row_count"].value for metadata in seen.values()] == [1, 1]
    assert {metadata["rows_in_all_partitions"].value for metadata in seen.values()} == {2}


def test_a_range_of_one_partition_is_published_and_read_by_partition_too(io, instance):
    days = dg.StaticPartitionsDefinition(["mo", "tu"])
    read: list[Any] = []

    @dg.asset(partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def orders(context: dg.AssetExecutionContext) -> dict[str, list[dict]]:
        return {day: [{"day": day}] for day in context.partition_keys}

    @dg.asset(partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def report(orders: dict[str, list[dict]]) -> None:
        read.append(orders)

    @dg.asset(partitions_def=days)
    def rows_alone(orders: list[dict]) -> None:
        read.append(orders)

    job = dg.define_asset_job("backfill", [orders, report, rows_alone])
    defs = dg.Definitions(assets=[orders, report, rows_alone], jobs=[job], resources=io)

    defs.resolve_job_def("backfill").execute_in_process(instance=instance, partition_key="tu")

    assert sorted(read, key=str) == [[{"day": "tu"}], {"tu": [{"day": "tu"}]}]


def test_with_keep_last_earlier_rows_are_trimmed(prefix, resources, instance, client):
    streams = RedisStreamIOManager(redis_streams=resources["redis_streams"], prefix=prefix, keep="last")

    @dg.asset
    def orders() -> list[dict]:
        return ROWS

    for _ in range(2):
        dg.materialize([orders], resources={"io_manager": streams}, instance=instance)

    assert client.xlen(f"{prefix}:orders") == len(ROWS)


def test_large_rows_are_read_a_few_at_a_time_also_after_tiny_ones(client, server_url, prefix):
    stream, rows = f"{prefix}:large", [{"text": "x"}] * 300 + [{"text": "x" * (1 << 20)}] * 30
    remember_rows(client, stream, StreamWriter(client, stream).enqueue_many(rows, batch_size=50))

    with MeasuredClient.from_url(server_url) as measured:
        assert read_rows(measured, stream) == rows

    assert max(measured.sizes) < 10 << 20
