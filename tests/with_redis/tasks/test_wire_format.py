"""docs/wire-format.md has every key of a task queue, and every field of its envelope."""

from __future__ import annotations

import inspect
import json
import re
from functools import cached_property
from pathlib import Path

from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.keys import BeatKeys, QueueKeys, answers_key, control_key, registry_key, workers_key

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()


def rows(title: str) -> set[str]:
    chapter = re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return {line.split("`")[1] for line in chapter.splitlines() if line.startswith("| `")}


def written_keys() -> set[str]:
    keys = QueueKeys("tasks", "QUEUE")
    written = {
        registry_key("tasks"),
        control_key("tasks"),
        answers_key("tasks", "ID"),
        workers_key("tasks"),
    }
    return written | keys_of(keys)


def keys_of(keys: QueueKeys | BeatKeys) -> set[str]:
    values = {"task_id": "ID", "group_id": "ID", "digest": "DIGEST", "bucket": "BUCKET", "shard": "K"}
    values |= {"schedule": "SCHEDULE", "name": "SCHEDULE"}
    written = set()
    for name, member in inspect.getmembers(type(keys)):
        if isinstance(member, cached_property) and name != "prefix":
            found = getattr(keys, name)
            written.add(found if isinstance(found, str) else re.sub(r":0(?=$|:)", ":N", found[0]))
        elif inspect.isfunction(member) and not name.startswith("_"):
            wanted = list(inspect.signature(member).parameters)[1:]
            written.add(member(keys, *(values[one] for one in wanted)))
    return written


def test_every_key_of_a_task_queue_is_on_the_page_and_no_other_is() -> None:
    assert rows("Keys of a task queue") == written_keys()


def test_every_key_of_schedules_is_on_the_page_and_no_other_is() -> None:
    assert rows("Keys of schedules") == keys_of(BeatKeys("tasks"))


def test_the_envelope_has_exactly_the_twelve_fields_of_the_page() -> None:
    fields = json.loads(TaskEnvelope(name="bill", args={"order_id": 7}).encode())

    assert set(fields) == rows("Task envelope")
    assert len(fields) == 12
