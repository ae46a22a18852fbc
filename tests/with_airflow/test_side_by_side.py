"""Why MessageTrigger exists: the same fault, with Airflow's own redis+pubsub trigger and with ours."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.airflow_providers import conquiet_stream, processed_of_six, redis_channel


def test_pubsub_loses_what_a_killed_watcher_had_received_and_the_stream_does_not(
    valkey_url: str, stream: str, tmp_path: Path
):
    with redis_channel(valkey_url, f"{stream}:channel") as channel:
        by_pubsub = processed_of_six(channel, tmp_path / "pubsub")
    with conquiet_stream(valkey_url, stream) as broker:
        by_stream = processed_of_six(broker, tmp_path / "stream")

    # The third was received and never processed; the fourth and fifth came while nobody listened.
    assert set(by_pubsub) == {1, 2, 6}
    assert set(by_stream) == {1, 2, 3, 4, 5, 6}
