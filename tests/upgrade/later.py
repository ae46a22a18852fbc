"""A recorded state with what a later version might have added to it: fields, values, names, messages."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from tests.upgrade.record import BILLING, DEAD, LEDGER, PUBLISHED_KEY, SHIPPING, STREAM, TOPIC
from tests.upgrade.state import State

ODD = {"base64": base64.b64encode(b"worker-\xff").decode()}
_NEW = {"newer": {"deep": [1, None]}}
_LATER = '{"schemaVersion":2,"route":"eu","payload":"in another form"}'

#: Messages of a later version in partition 0: pending at its dead consumer, waiting for a retry, undelivered.
PENDING, WAITING, UNDELIVERED = "1-1", "1-2", "8888888888888-0"


def later_version(state: State) -> State:
    """The same server, after a consumer and a producer of a later version had been there."""
    state = copy.deepcopy(state)
    keys = state["keys"]
    for key, record in list(keys.items()):
        value = record["value"]
        if key.startswith("stream:topic:"):
            for _, fields in value["entries"]:
                fields[0][1] = _with_new_fields(fields[0][1])
        elif key.startswith(("streaming:mq:failures:", "streaming:mq:retry:item:")):
            for pair in value:
                partition, colon, data = pair[1].partition(":") if "retry" in key else ("", "", pair[1])
                pair[1] = partition + colon + _with_new_fields(data)
        elif key.startswith("streaming:mq:lease:"):
            value += [["host", ODD], ["schemaVersion", "2"]]
        elif key.startswith(("streaming:mq:waiting:", "streaming:mq:retry:orders")):
            value.append(["of another form", 0])
    keys["{payments}:dlq"]["value"]["entries"][0][1][0][1] = _with_new_fields(
        keys["{payments}:dlq"]["value"]["entries"][0][1][0][1]
    )
    meta = keys[f"streaming:mq:topic:{TOPIC}:meta"]["value"]
    for pair in meta:
        if pair[0] == "policies":
            pair[1] = _with_new_fields(pair[1])
    meta.append(["newer", ODD])
    keys["streaming:mq:topics:registry"]["value"].append(ODD)
    keys[f"streaming:mq:dedupe:{TOPIC}"]["value"].append(["of another form", '{"entry":"1-1"}'])
    keys[f"streaming:mq:replayed:{TOPIC}"]["value"].append(["caller", "of another form"])
    members = keys[f"streaming:mq:members:{TOPIC}:{BILLING}"]["value"]
    members.append([ODD, members[0][1]])
    _add_odd_records(keys)
    _add_later_messages(keys)
    letters = keys[f"stream:topic:{TOPIC}:dlq"]["value"]
    letter = {"schemaVersion": 2, "group": BILLING, "partition": 0, "envelope": json.loads(_LATER)}
    letters["entries"].append([UNDELIVERED, [["data", json.dumps(letter)]]])
    letters["last_id"] = UNDELIVERED
    return state


def _add_odd_records(keys: dict[str, Any]) -> None:
    """To what not every recorded version has."""
    for key, record in keys.items():
        if key.startswith(f"{{{STREAM}}}:drains:"):
            record["value"] += [["worker-later", "of another form"], ["worker-eu", "1e999 eu -"], [ODD, ODD]]
        elif key.startswith("streaming:mq:end:") or key == f"{{{STREAM}}}:end":
            record["value"] += [["newer", ODD], ["loss:7", "of another form"], ["loss:eu", '{"after":7}']]
        elif key.endswith(":limits"):
            record["value"].append([ODD, -1])
        elif key == PUBLISHED_KEY:
            record["value"] += [["of another form", "eu"], [ODD, ODD]]


def _add_later_messages(keys: dict[str, Any]) -> None:
    stream = keys[f"stream:topic:{TOPIC}:p:0"]["value"]
    old = [[entry_id, [["data", _LATER]]] for entry_id in (PENDING, WAITING)]
    stream["entries"] = [*old, *stream["entries"], [UNDELIVERED, [["data", _LATER]]]]
    stream["last_id"] = UNDELIVERED
    groups = {group["name"]: group for group in stream["groups"]}
    billing = groups[BILLING]
    billing["pending"] = [[PENDING, ODD, 10, 2], [WAITING, ODD, 10, 3], *billing["pending"]]
    waiting = keys[f"streaming:mq:waiting:{TOPIC}:{BILLING}:0"]["value"]
    waiting.append([WAITING, waiting[0][1]])
    for group in (billing, groups[SHIPPING]):
        group["consumers"].append(ODD)
    stream["groups"].append({"name": ODD, "last_delivered_id": "0-0", "consumers": [ODD], "pending": []})
    (ledger,) = keys[STREAM]["value"]["groups"]
    assert ledger["name"] == LEDGER
    # What was in flight at the dead consumer is at one whose name is no text.
    ledger["consumers"].append(ODD)
    for row in ledger["pending"]:
        row[1] = ODD if row[1] == DEAD else row[1]


def _with_new_fields(text: str) -> str:
    try:
        record = json.loads(text)
    except ValueError:
        return text
    payload = {name: record.pop(name) for name in ("payload",) if name in record}
    if isinstance(record.get("envelope"), dict):
        record["envelope"] = json.loads(_with_new_fields(json.dumps(record["envelope"])))
    return json.dumps({**record, **_NEW, **payload})
