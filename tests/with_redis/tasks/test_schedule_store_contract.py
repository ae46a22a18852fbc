"""The schedule store in Redis, by the suite that users run on theirs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from conquiet.tasks import RedisScheduleStore, TaskApp
from conquiet.tasks.schedules import ScheduleStore
from conquiet.tasks.schedules.store import Claim, StoredSchedule
from conquiet.testing import ScheduleStoreContract


class TestRedisScheduleStore(ScheduleStoreContract):
    """In every kind of server."""

    @pytest.fixture(autouse=True)
    def _use(self, app: TaskApp) -> None:
        self._app = app

    def make_schedule_store(self) -> ScheduleStore:
        """In a namespace of its own."""
        return RedisScheduleStore(self._app.client, f"{self._app.namespace}-{uuid.uuid4().hex[:6]}")


class WithoutFence(RedisScheduleStore):
    """Whoever claims is taken for the leader."""

    def claim(self, claims: Sequence[Claim]) -> list[bool | Exception]:
        return super().claim([replace(one, epoch=self.stats().epoch) for one in claims])


class WithoutOutbox(RedisScheduleStore):
    """What is claimed is gone."""

    def claim(self, claims: Sequence[Claim]) -> list[bool | Exception]:
        return super().claim([replace(one, occurrences=()) for one in claims])


class WithoutVersions(RedisScheduleStore):
    """The last edit wins."""

    def put(self, changed: StoredSchedule, seen: StoredSchedule | None) -> int:
        return super().put(changed, self.read(changed.name)[1])


@pytest.mark.parametrize(
    ("store", "found_by"),
    [
        (WithoutFence, "test_a_claim_is_refused_after_another_one_an_edit_or_another_leader"),
        (WithoutOutbox, "test_a_claim_moves_the_schedule_on_and_its_occurrences_are_pending_until_confirmed"),
        (WithoutVersions, "test_a_change_of_what_was_not_seen_is_refused"),
    ],
)
def test_a_wrong_store_is_found(app: TaskApp, store: type[RedisScheduleStore], found_by: str) -> None:
    class Wrong(ScheduleStoreContract):
        def make_schedule_store(self) -> ScheduleStore:
            return store(app.client, f"{app.namespace}-{uuid.uuid4().hex[:6]}")

    with pytest.raises(AssertionError):
        getattr(Wrong(), found_by)()
