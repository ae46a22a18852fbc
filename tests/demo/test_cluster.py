"""The demo on clusters: an executor is killed while orders are published to three nodes."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.demo.running import run_demo
from tests.services import unavailable

pytestmark = pytest.mark.xdist_group("orchestrators")


def test_an_executor_that_is_killed_loses_and_doubles_no_order(tmp_path):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        unavailable("java", "no java on PATH")

    run = run_demo(tmp_path, "--cluster", "--orders", "60000")

    assert run.code == 0, run.printed
    [totals] = run.row("enqueued")
    assert run.row("handled") == run.row("effects in the database") == [totals]
    assert "60,000 orders on 3 nodes" in run.printed
    assert "Totals in the database equal totals sent. Sent: 60,000 orders" in run.printed
    assert run.left_behind() == []
