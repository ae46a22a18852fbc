"""A real `dagster dev`: messages become runs, and a step that is killed loses nothing."""

from __future__ import annotations

import dagster as dg
import pytest
import redis
from sqlalchemy import create_engine, text

from dagster_conquiet import stream_asset_key
from tests.eventually import eventually
from tests.with_dagster.dagster_dev import dagster_dev

pytestmark = pytest.mark.xdist_group("orchestrators")


def finished_run(instance, job_name, *statuses):
    """The last run of the job with one of these statuses."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job_name, statuses=list(statuses)), limit=1)
    return runs[0] if runs else None


def test_messages_become_succeeded_runs_and_a_killed_step_is_retried_with_each_effect_once(
    place, monkeypatch, enqueue, effects_seen, pending, consumers, tmp_path
):
    directory, home = tmp_path / "embedded", tmp_path / "home"
    for name in ("CONQUIET_REDIS_URL", "CONQUIET_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    environment = {"CONQUIET_DIRECTORY": str(directory)}
    ids = enqueue(10)

    with dagster_dev(home, "tests.with_dagster.dev_definitions", environment) as instance:
        # The sensor's first tick starts the private server; the shop's orders come after that.
        url = eventually(lambda: (directory / "url").exists() and (directory / "url").read_text())
        with redis.Redis.from_url(url) as private:
            # All at once, so that a tick sees all or nothing.
            with private.pipeline() as pipeline:
                for number in range(20):
                    pipeline.xadd("orders", {"data": f'{{"order_id": "{number:03}", "cents": 100}}'})
                pipeline.execute()
            success = dg.DagsterRunStatus.SUCCESS
            billed = eventually(lambda: finished_run(instance, "bill_orders", success), every_s=0.5)
            group = private.xinfo_groups("orders")[0]
        observed = instance.fetch_observations(stream_asset_key("orders"), limit=20).records
        retried = eventually(lambda: finished_run(instance, "drain_and_die", success), every_s=0.5)

    assert billed.tags["dagster/sensor_name"] == "backlog__orders__billing"
    assert (group["pending"], group["lag"]) == (0, 0)
    observations = [record.asset_observation for record in observed if record.asset_observation]
    assert 20 in {observation.metadata["lag"].value for observation in observations}
    engine = create_engine(f"sqlite:///{directory}/orders.db")
    with engine.connect() as connection:
        billed_ids = sorted(connection.scalars(text("SELECT order_id FROM bills")))
    engine.dispose()
    assert billed_ids == [f"{number:03}" for number in range(20)]
    assert retried.parent_run_id  # the daemon's own retry of the run whose step was killed
    assert (place / "died").exists()
    assert effects_seen() == sorted(ids)
    assert (pending(), consumers()) == (0, set())
