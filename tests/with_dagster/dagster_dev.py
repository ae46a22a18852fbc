"""A real `dagster dev`: webserver, daemon and code servers, in a process group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from tests.eventually import eventually
from tests.services import free_port

ROOT = Path(__file__).parents[2]
#: No telemetry; a failed run is retried where its tags say so, from the first step on.
SETTINGS = """
telemetry:
  enabled: false
run_retries:
  enabled: true
"""


@contextmanager
def dagster_dev(home: Path, module: str, environment: dict[str, str]) -> Iterator[dg.DagsterInstance]:
    """Run it until the end of the block, and tell what its instance knows."""
    home.mkdir()
    (home / "dagster.yaml").write_text(SETTINGS)
    port = free_port()
    command = [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port), "-m", module]
    variables = os.environ | environment | {"DAGSTER_HOME": str(home), "PYTHONPATH": str(ROOT)}
    with (home / "dev.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=home, env=variables, stdout=log, stderr=log, start_new_session=True
        )
        try:
            eventually(lambda: _is_up(port, process), every_s=0.2)
            assert "Error loading repository location" not in (home / "dev.log").read_text()
            with dg.DagsterInstance.from_config(str(home)) as instance:
                yield instance
        except BaseException:
            print((home / "dev.log").read_text()[-20_000:])
            raise
        finally:
            _end(process, home)


def _is_up(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "dagster dev ended by itself"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes], home: Path) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Children that left the group are known by the home that they were given.
    for pid in processes_of(home):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not processes_of(home))


def processes_of(home: Path) -> list[int]:
    """The processes that have this DAGSTER_HOME."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            is_ours = f"DAGSTER_HOME={home}\0".encode() in (entry / "environ").read_bytes()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if is_ours:
            found.append(int(entry.name))
    return found
