"""The data of a task's entry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from conquiet.payload import encode_payload
from conquiet.tasks.envelope import TaskEnvelope

AT = datetime(2026, 3, 1, 12, 30, 15, 123_456, tzinfo=UTC)


@pytest.mark.parametrize(
    "envelope",
    [
        TaskEnvelope(name="bill", args={}),
        TaskEnvelope(name='say "ü"\n', args={"order": {"n": 1, "tags": ["a"]}}, id='7"-\\', queue="süd"),
        TaskEnvelope(name="bill", args={"n": None}, headers={"traceparent": '00-"'}, meta={"by": {"a": [1]}}),
        TaskEnvelope(name="bill", args={}, meta={"schemaVersion": 2}, priority=9, attempt=1, max_retries=0),
        TaskEnvelope(
            name="bill",
            args={},
            enqueued_at=AT.astimezone(timezone(timedelta(hours=2))),
            not_before=AT + timedelta(days=1),
            visibility_timeout_ms=60_000,
        ),
    ],
)
def test_an_envelope_is_written_as_the_json_of_its_fields(envelope):
    assert envelope.encode() == encode_payload(envelope.fields())


@pytest.mark.parametrize("where", ["args", "headers", "meta"])
def test_an_envelope_refuses_what_would_not_come_back_equal(where):
    fields: dict[str, Any] = {"name": "bill", "args": {}, where: {"pair": (1, 2)}}
    envelope = TaskEnvelope(**fields)

    with pytest.raises(TypeError, match="tuple"):
        envelope.encode()
