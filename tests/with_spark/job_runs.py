"""Jobs inside the tests' process, on the tests' Spark session: their report and what they left in a topic."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from conquiet.mq import Topic
from conquiet.spark.jobs import arguments_of
from conquiet.spark.jobs.runner import run_job
from tests.services import Client


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a job ended."""

    code: int
    report: dict[str, Any]
    #: Its progress, its error.
    stderr: str


def run_here(capsys: Any, job: str, **options: Any) -> JobRun:
    """Run a job as its command line would."""
    capsys.readouterr()
    code = run_job(job, arguments_of(options))
    captured = capsys.readouterr()
    return JobRun(code, json.loads(captured.out.splitlines()[-1]), captured.err)


def envelopes(topic: Topic) -> list[dict[str, Any]]:
    """Every message of a topic as it is in its stream, partition by partition."""
    client: Client = topic.client
    streams = [topic.keys.stream(partition) for partition in topic.partitions]
    entries = [entry for stream in streams for entry in client.xrange(stream)]
    return [json.loads(fields[b"data"]) for _, fields in entries]


def payloads(topic: Topic) -> list[dict[str, Any]]:
    """What the messages say."""
    return [envelope["payload"] for envelope in envelopes(topic)]
