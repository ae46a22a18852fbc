"""An executor that is killed in the middle of a write."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.eventually import HANG_S
from tests.with_spark.server_side import numbers_in, streams_of

ROOT = Path(__file__).parents[2]


def test_rows_are_written_once_when_an_executor_is_killed(spark, valkey, valkey_url, topic, tmp_path):
    total = 200_000
    command = [sys.executable, "-m", "tests.with_spark.executors", valkey_url, topic.name, str(total)]
    environment = os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path), "SPARK_WORKER_DIR": str(tmp_path / "work")}

    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=HANG_S)
    finally:
        # Everything that it started is in its group, and it has no use for it any more.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.returncode == 0, errors[-3_000:]
    at_kill = re.search(r"added at the kill: (\d+)", output)
    assert at_kill
    assert 5_000 < int(at_kill[1]) < total
    assert numbers_in(valkey, *streams_of(topic)) == list(range(total))
