"""dagster_defs: the shop as a user would copy it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import text

from conquiet.consume import dead_letter_stream
from conquiet.tasks import Worker, WorkerConfig
from dagster_conquiet import RedisStreamsResource
from dagster_defs import embedded
from dagster_defs.definitions import defs
from dagster_defs.resources import BillingDatabase
from tests.eventually import HANG_S, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(server_url, tmp_path, client):
    """The shop's resources, on the tests' server and a database of its own; its stream is gone afterwards."""
    yield {
        "redis_streams": RedisStreamsResource(url=server_url),
        "database": BillingDatabase(url=f"sqlite:///{tmp_path}/new/shop.db"),
    }
    client.delete("orders", *client.keys("{orders}:*"))


def bills(shop):
    engine = shop["database"].get_engine()
    with engine.connect() as connection:
        found = sorted(connection.scalars(text("SELECT order_id FROM bills")))
    shop["database"].dispose()
    return found


def run(name, shop, instance, **options):
    return defs.resolve_job_def(name).execute_in_process(resources=shop, instance=instance, **options)


@pytest.mark.xdist_group("orders")
def test_orders_are_taken_drained_and_billed_once(shop, instance, client):
    taken = run("take_orders", shop, instance)
    sensor = defs.resolve_sensor_def("backlog__orders__billing")
    of_redis = {"redis_streams": shop["redis_streams"]}
    tick: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))

    run("bill_orders", shop, instance)
    run("recover_orders", shop, instance)
    checked = run("check_orders", shop, instance).get_asset_check_evaluations()

    assert len(tick.run_requests) == 1
    assert [check.passed for check in checked] == [True, True, True]
    assert bills(shop) == sorted(f"{taken.run_id}/{number}" for number in range(100))
    assert client.xinfo_groups("orders")[0]["pending"] == 0


@pytest.mark.xdist_group("orders")
def test_an_order_that_always_fails_is_a_dead_letter_that_can_be_replayed(shop, instance, client):
    client.xadd("orders", {"data": '{"order_id": 7, "cents": -1}'})
    limits = {"ops": {"bills": {"config": {"max_deliveries": 1}}}}
    recovery = {"ops": {"claim_stale__recover_orders": {"config": {"min_idle_ms": 0, "max_deliveries": 1}}}}
    run("bill_orders", shop, instance, run_config=limits, raise_on_error=False)
    run("recover_orders", shop, instance, run_config=recovery, raise_on_error=False)
    letters = client.xlen(dead_letter_stream("orders"))

    result = run("replay_dead_orders", shop, instance)

    assert letters == 1
    assert result.output_for_node("replay_dead_letters__replay_dead_orders")["replayed"] == 1
    assert client.xlen(dead_letter_stream("orders")) == 0


@pytest.mark.xdist_group("orders")
def test_bills_are_summed_up_by_a_worker_of_tasks(shop, instance, client, server_url, monkeypatch):
    monkeypatch.setenv("CONQUIET_REDIS_URL", server_url)
    monkeypatch.setenv("CONQUIET_DATABASE_URL", shop["database"].url)
    run("take_orders", shop, instance)
    run("bill_orders", shop, instance)
    app = runpy.run_path(str(ROOT / "dagster_defs" / "tasks.py"))["app"]

    with app, Worker(app, WorkerConfig(pool="thread", concurrency=1)):
        result = run("sum_up_bills", shop, instance)

    assert result.output_for_node("billed") == {"bills": 100, "cents": sum(range(100, 200))}
    client.delete("tasks:queues", *client.keys("tasks:{default}:*"))


def test_dagster_validates_the_definitions_and_loading_them_touches_nothing(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CONQUIET_DIRECTORY": f"{tmp_path}/never"}
    environment.pop("DAGSTER_HOME", None)
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "dagster_defs.definitions"]

    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S
    )

    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stderr + done.stdout
    assert not (tmp_path / "never").exists()


def test_processes_share_one_private_server_and_its_data_outlives_it(tmp_path):
    program = "import sys, pathlib; from dagster_defs.embedded import embedded_url; "
    program += "print(embedded_url(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", program, str(tmp_path)]

    def url_in_another_process() -> str:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S
        ).stdout

    first = url_in_another_process().strip()
    keeper = keeper_of(tmp_path)
    try:
        with RedisStreamsResource(url=first).connect() as client:
            client.xadd("orders", {"data": "{}"})
        second = url_in_another_process().strip()
    finally:
        end(keeper)
    third = embedded.embedded_url(tmp_path)
    try:
        with RedisStreamsResource(url=third).connect() as client:
            length = client.xlen("orders")
    finally:
        end(keeper_of(tmp_path))

    assert second == first
    assert length == 1


def keeper_of(directory: Path) -> int:
    """The process that keeps the server of this directory."""
    wanted = ["-m", "dagster_defs.embedded", str(directory)]
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[1:4] == wanted:
                return int(entry.name)
    raise AssertionError(f"nobody keeps {directory}")


def end(pid: int) -> None:
    os.kill(pid, 15)
    eventually(lambda: is_gone(pid))


def is_gone(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"
