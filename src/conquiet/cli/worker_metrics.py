"""The metrics of a worker over HTTP: of its process, and of the children of its pool."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from conquiet.cli.exits import UsageError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

#: By which prometheus_client, when it is imported, and every child find the files of all processes.
_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class ProcessesCollector:
    """What all processes have counted in their files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        """Add them up; prometheus_client's own collector fails at a file that a process has just made."""
        from prometheus_client.multiprocess import MultiProcessCollector

        files = [str(file) for file in self._directory.glob("*.db") if _size(file)]
        metrics: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return metrics


@contextmanager
def served_metrics(port: int, address: str = "0.0.0.0") -> Iterator[str]:  # noqa: S104 -- as Prometheus' own
    """Serve in the block what this process and its children count; returns the URL.

    Called before anything imports prometheus_client, which decides then whether it counts in files.
    """
    with TemporaryDirectory(prefix="conquiet-metrics-") as directory:
        files = Path(os.environ.setdefault(_DIRECTORY, directory))
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(ProcessesCollector(files))
        try:
            server, thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise UsageError(f"{address}:{port} cannot be listened on: {error.strerror}") from error
        try:
            yield f"http://{address}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            if os.environ.get(_DIRECTORY) == directory:
                del os.environ[_DIRECTORY]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        # Of a gauge, whose process has ended.
        return 0
