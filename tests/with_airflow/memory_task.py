"""A task's process with little memory that takes messages for a run, and reports what it took and read.

`STREAM LIMIT_MB TRIES`: `LIMIT_MB` is what it may need beyond what Airflow itself does; the messages are
read after the last try.
"""

from __future__ import annotations

import json
import resource
import sys
from types import SimpleNamespace
from typing import Any

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.take import TakeOperator, messages_of
from tests.with_redis.memory_worker import memory_mb


def main(stream: str, limit_mb: str, tries: str) -> None:
    operator = TakeOperator(task_id="take", stream=stream, group="shipping", max_messages=1_000)
    names = {"dag_id": "dag", "run_id": "run", "task_id": "take", "map_index": -1}
    with RedisStreamsHook() as hook:
        hook.get_conn()
    resource.setrlimit(resource.RLIMIT_DATA, ((memory_mb("VmData") + int(limit_mb)) << 20,) * 2)
    reports = []
    for number in range(1, int(tries) + 1):
        context: Any = {"ti": SimpleNamespace(**names, try_number=number), "outlet_events": {}}
        reports.append(operator.execute(context))
    read = [len(msg.payload["text"]) for msg in messages_of(reports[-1])]
    print(json.dumps({"taken": [report["ids"] for report in reports], "read": read}))


if __name__ == "__main__":
    main(*sys.argv[1:])
