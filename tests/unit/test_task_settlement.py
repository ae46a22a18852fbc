"""How a task is settled, decided without Redis."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from conquiet.tasks import clock
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.errors import PayloadStoreError
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.message import Place, TaskMessage
from conquiet.tasks.settlement import TaskRules

AT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def now() -> Iterator[datetime]:
    """The clock stands still."""
    clock.set_clock(round(AT.timestamp() * 1000))
    yield AT
    clock.set_clock(None)


@pytest.mark.parametrize(("waited_s", "delay_ms"), [(0, 5_000), (60, 6_000), (300, 30_000), (86_400, 60_000)])
def test_the_longer_the_payload_store_is_unavailable_the_more_rarely_a_task_is_run_for_its_result(
    now: datetime, waited_s: int, delay_ms: int
) -> None:
    enqueued_at = now - timedelta(seconds=waited_s)
    envelope = TaskEnvelope(name="large", args={}, enqueued_at=enqueued_at)
    msg = TaskMessage(
        place=Place(keys=QueueKeys("tasks", "default"), priority=5, entry_id="1-0"),
        envelope=envelope,
        data=envelope.encode(),
        delivery_count=1,
        is_counted=True,
        task=None,
    )
    msg.begins()

    settlement = TaskRules("c", ()).for_result(msg, PayloadStoreError("put", "k", OSError("full")))

    assert (settlement.kind, settlement.first, settlement.second) == ("hand_back", delay_ms, "0")
