"""A Spark standalone cluster from the pip package: master and workers, each in a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pyspark

from tests.eventually import HANG_S, eventually
from tests.services import free_port

SPARK_HOME = Path(pyspark.__file__).parent


@contextmanager
def spark_cluster(folder: Path, environment: dict[str, str], workers: int = 2) -> Iterator[str]:
    """The URL of the master, once the workers are there; everything is stopped at the end."""
    port, web_port = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        ports = ["--port", str(port), "--webui-port", str(web_port)]
        master = ["--host", "127.0.0.1", *ports]
        stack.enter_context(_running("master.Master", master, folder / "master.log", environment))
        eventually(lambda: _alive_workers(web_port) == 0, every_s=0.2)
        for number in range(workers):
            work = folder / f"worker-{number}"
            arguments = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            arguments += ["--webui-port", str(free_port()), url]
            log = folder / f"worker-{number}.log"
            stack.enter_context(_running("worker.Worker", arguments, log, environment))
        eventually(lambda: _alive_workers(web_port) == workers, every_s=0.2)
        yield url


def _alive_workers(web_port: int) -> int | None:
    """As the master reports; `None` while it does not answer."""
    try:
        with urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=60) as reply:
            return int(json.load(reply)["aliveworkers"])
    except OSError:
        return None


@contextmanager
def _running(name: str, arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    settings = os.environ | environment | {"SPARK_HOME": str(SPARK_HOME), "SPARK_NO_DAEMONIZE": "1"}
    # The executors that a worker starts run in its group, and need this Python.
    settings["PYSPARK_PYTHON"] = sys.executable
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=settings, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=HANG_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
