"""The whole demo: real Airflow, Spark and Dagster, a task killed in the middle of its drain."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.demo.running import run_demo
from tests.services import unavailable

pytestmark = pytest.mark.xdist_group("orchestrators")


def test_the_whole_pipeline_ends_with_equal_totals_and_leaves_nothing(tmp_path):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        unavailable("java", "no java on PATH")

    run = run_demo(tmp_path, "--orders", "1000")

    assert run.code == 0, run.printed
    orders, airflow, dagster = run.row("enqueued")
    assert orders == 1000
    assert airflow == dagster > 0
    assert run.row("handled") == run.row("effects in the database") == [orders, airflow, dagster]
    assert run.row("lag") == run.row("pending") == run.row("dead letters") == [0, 0, 0]
    [redelivered, twice_in_airflow], [skipped, _] = run.row("redelivered"), run.row("skipped by the inbox")
    assert redelivered > skipped > 0
    assert twice_in_airflow == 0
    assert f"{redelivered} claimed, {skipped} were done" in run.printed
    assert "Totals in the database equal totals sent. Sent: 1,000 orders, 599,500 cents" in run.printed
    assert run.printed.count("1,000 orders, 599,500 cents") == 4
    assert run.picture_size() == (1320, 744)
    assert run.left_behind() == []
