"""Why MessageTrigger exists: the same fault, with Airflow's own redis+pubsub trigger and with ours."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.eventually import HANG_S, eventually
from tests.with_airflow.standalone import connection_to

FATAL = 3


class PubSub:
    """A channel, as Airflow's redis provider watches it."""

    kind = "redis+pubsub"

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self.name = name
        self._subscribed_before = self._subscribed()

    def send(self, number: int) -> None:
        self._client.publish(self.name, number)

    def is_listened_to(self, times: int) -> bool:
        # Its trigger subscribes anew after each event and never closes the old connection.
        return self._subscribed() >= self._subscribed_before + times

    def _subscribed(self) -> int:
        return int(self._client.info("commandstats").get("cmdstat_subscribe", {"calls": 0})["calls"])


class Stream:
    """A stream, as conquiet watches it."""

    kind = "redis+stream"

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self.name = name

    def send(self, number: int) -> None:
        self._client.xadd(self.name, {"data": json.dumps({"number": number})})

    def is_listened_to(self, times: int) -> bool:
        # What is in the stream waits for its reader.
        return True


@contextmanager
def watcher(broker: PubSub | Stream, done: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that watches, and writes down what it has processed."""
    program = [sys.executable, "-m", "tests.with_airflow.one_watcher"]
    process = subprocess.Popen(
        [*program, broker.kind, broker.name, str(done), str(FATAL)], cwd=Path(__file__).parents[2]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=HANG_S)


def processed_of_six(broker: PubSub | Stream, done: Path) -> set[int]:
    """Send six; the watcher dies between receipt and processing of the third, and starts again."""

    def processed() -> set[int]:
        return {int(line) for line in done.read_text().split()}

    def is_processed(number: int) -> bool:
        return number in processed()

    def send_when_listened_to(number: int, times: int) -> None:
        eventually(lambda: broker.is_listened_to(times))
        broker.send(number)

    done.touch()
    with watcher(broker, done) as first:
        for number in (1, 2):
            send_when_listened_to(number, times=number)
            eventually(partial(is_processed, number))
        send_when_listened_to(FATAL, times=3)
        assert first.wait(timeout=HANG_S) == -signal.SIGKILL
    for number in (4, 5):
        broker.send(number)
    with watcher(broker, done):
        send_when_listened_to(6, times=4)
        eventually(lambda: 6 in processed())
    return processed()


def test_pubsub_loses_what_a_killed_watcher_had_received_and_the_stream_does_not(
    valkey: redis.Redis, valkey_url: str, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_DEFAULT", valkey_url)
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(valkey_url))

    by_pubsub = processed_of_six(PubSub(valkey, f"{stream}:channel"), tmp_path / "pubsub")
    by_stream = processed_of_six(Stream(valkey, stream), tmp_path / "stream")

    # The third was received and never processed; the fourth and fifth came while nobody listened.
    assert by_pubsub == {1, 2, 6}
    assert by_stream == {1, 2, 3, 4, 5, 6}
