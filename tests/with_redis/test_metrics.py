"""Metrics never get in the way: broken registries, taken names, several processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.multiprocess import MultiProcessCollector

from conquiet.queue.metrics import QueueMetrics
from tests.eventually import HANG_S


class BrokenRegistry(CollectorRegistry):
    def register(self, collector):
        raise RuntimeError("broken")


def emit_everything(metrics: QueueMetrics) -> None:
    metrics.count_read(3, 0.5)
    metrics.count_acks(2)
    metrics.count_claims(1)


def test_a_registry_that_refuses_does_not_raise():
    emit_everything(QueueMetrics("orders", BrokenRegistry()))


def test_a_name_that_is_taken_does_not_raise():
    registry = CollectorRegistry()
    Counter("conquiet_queue_messages_read_total", "Somebody else's.", registry=registry)

    emit_everything(QueueMetrics("orders", registry))

    assert registry.get_sample_value("conquiet_queue_messages_ack_total", {"stream": "orders"}) == 2


def test_two_queues_share_the_metrics_of_a_registry():
    registry = CollectorRegistry()

    for stream in ("orders", "orders", "bills"):
        emit_everything(QueueMetrics(stream, registry))

    assert registry.get_sample_value("conquiet_queue_messages_read_total", {"stream": "orders"}) == 6
    assert registry.get_sample_value("conquiet_queue_messages_read_total", {"stream": "bills"}) == 3
    assert registry.get_sample_value("conquiet_queue_read_latency_seconds_sum", {"stream": "orders"}) == 1.0


def test_a_metric_that_fails_when_emitted_does_not_raise(monkeypatch):
    metrics = QueueMetrics("orders", CollectorRegistry())

    metrics.count_acks(-1)  # a counter refuses to go down

    emit_everything(metrics)


WORKER = """
import sys
from conquiet import QueueConfig, RedisStreamsQueue
queue = RedisStreamsQueue.from_url(sys.argv[1], QueueConfig(sys.argv[2], "billing", sys.argv[3], block_ms=50))
queue.enqueue_many([{"n": n} for n in range(5)])
for msg in queue.read(50, count=5):
    queue.ack(msg)
"""


@pytest.mark.parametrize("directory", ["metrics", "not/there"])
def test_multiprocess_mode_adds_up_the_processes_and_a_missing_directory_does_not_raise(
    valkey_url, stream, tmp_path, directory
):
    (tmp_path / "metrics").mkdir()
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / directory)}

    for consumer in ("worker-1", "worker-2"):
        command = [sys.executable, "-c", WORKER, valkey_url, stream, consumer]
        subprocess.run(command, env=environment, check=True, timeout=HANG_S)

    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path / "metrics"))
    expected = 10 if directory == "metrics" else None
    assert registry.get_sample_value("conquiet_queue_messages_ack_total", {"stream": stream}) == expected
