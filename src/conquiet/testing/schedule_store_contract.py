"""ScheduleStoreContract: what every `ScheduleStore` must do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from conquiet.tasks.schedules import ScheduleChangedError, ScheduleStore
from conquiet.tasks.schedules.store import Claim, MessageDelivery, Occurrence, StoredSchedule

_LEASE_MS = 60_000
_HOUR_MS = 3_600_000


class ScheduleStoreContract(ABC):
    """Inherit from it in a class that pytest collects, and say how a store is made.

    Examples:
        >>> class TestMyScheduleStore(ScheduleStoreContract):
        ...     def make_schedule_store(self):
        ...         return MyScheduleStore()
    """

    @abstractmethod
    def make_schedule_store(self) -> ScheduleStore:
        """A store that is empty."""

    def test_a_schedule_is_read_as_it_was_written(self) -> None:
        """With a version, and without a state yet."""
        store = self.make_schedule_store()
        now_ms, nothing = store.read("s")
        written = _schedule("s", planned_ms=now_ms + _HOUR_MS)

        assert nothing is None
        assert store.put(written, None) == 1
        found = _read(store, "s")
        assert (found.definition, found.version, found.is_enabled) == (b"definition of s", 1, True)
        assert (found.planned_ms, found.due_ms) == (now_ms + _HOUR_MS, now_ms + _HOUR_MS)
        assert (found.runs, found.skipped, found.last_id, found.error) == (0, 0, None, None)

    def test_times_that_an_edit_carries_are_kept_until_the_next_one(self) -> None:
        """So that it neither loses nor adds occurrences."""
        store = self.make_schedule_store()
        store.put(replace(_schedule("s", planned_ms=1), carried_ms=(1, 3), carried_until_ms=4), None)
        carrying = _read(store, "s")
        assert (carrying.carried_ms, carrying.carried_until_ms) == ((1, 3), 4)

        store.put(_schedule("s", planned_ms=5), carrying)
        found = _read(store, "s")
        assert (found.carried_ms, found.carried_until_ms) == ((), None)

    def test_names_come_in_order_and_many_are_read_at_once(self) -> None:
        """Those that are not there are left out."""
        store = self.make_schedule_store()
        for name in ("b", "c", "a"):
            store.put(_schedule(name), None)

        assert list(store.names()) == ["a", "b", "c"]
        assert [one.name for one in store.read_many(["c", "unknown", "a"])] == ["c", "a"]

    def test_a_change_of_what_was_not_seen_is_refused(self) -> None:
        """So no edit is lost, and no occurrence repeated."""
        store = self.make_schedule_store()
        store.put(_schedule("s", planned_ms=1_000), None)
        seen = _read(store, "s")

        _refused(lambda: store.put(_schedule("s"), None))
        assert store.put(_schedule("s", planned_ms=2_000), seen) == 2
        _refused(lambda: store.put(_schedule("s"), seen))
        _refused(lambda: store.put(_schedule("s"), replace(seen, version=2)))
        assert store.put(_schedule("s"), replace(seen, version=2, planned_ms=2_000)) == 3

    def test_a_schedule_is_deleted_once_and_by_its_version(self) -> None:
        """With all that is kept of it."""
        store = self.make_schedule_store()
        store.put(_schedule("s", planned_ms=1_000), None)

        _refused(lambda: store.delete("s", 7))
        assert store.delete("s", 1)
        assert not store.delete("s", None)
        assert list(store.names()) == []
        assert store.tick("b", 0, lease_ms=_LEASE_MS, most=10).due == ()

    def test_one_beat_leads_and_keeps_its_epoch(self) -> None:
        """Until it is silent for longer than its lease."""
        store = self.make_schedule_store()
        first = store.tick("first", 0, lease_ms=_LEASE_MS, most=10)
        second = store.tick("second", 0, lease_ms=_LEASE_MS, most=10)
        again = store.tick("first", first.epoch, lease_ms=1, most=10)
        time.sleep(0.05)
        replaced = store.tick("second", 0, lease_ms=_LEASE_MS, most=10)

        assert (first.epoch > 0, again.epoch) == (True, first.epoch)
        assert (second.epoch, second.leader) == (0, "first")
        assert replaced.epoch > first.epoch
        assert store.tick("first", first.epoch, lease_ms=_LEASE_MS, most=10).epoch == 0

    def test_a_beat_that_releases_its_lease_is_replaced_at_once(self) -> None:
        """And one that leads no more releases nothing."""
        store = self.make_schedule_store()
        first = store.tick("first", 0, lease_ms=_LEASE_MS, most=10)
        store.release(first.epoch)
        second = store.tick("second", 0, lease_ms=_LEASE_MS, most=10)
        store.release(first.epoch)

        assert second.epoch > first.epoch
        assert store.tick("third", 0, lease_ms=_LEASE_MS, most=10).epoch == 0

    def test_what_is_due_is_returned_the_longest_due_first_and_not_what_is_later(self) -> None:
        """No more than asked for."""
        store = self.make_schedule_store()
        now_ms, _ = store.read("any")
        for number, name in enumerate("abc"):
            store.put(_schedule(name, planned_ms=now_ms - 1_000 * number), None)
        store.put(_schedule("later", planned_ms=now_ms + _HOUR_MS), None)
        store.put(_schedule("disabled"), None)

        tick = store.tick("b", 0, lease_ms=_LEASE_MS, most=2)

        assert tick.due == ("c", "b")
        assert store.stats().due == 3

    def test_a_claim_moves_the_schedule_on_and_its_occurrences_are_pending_until_confirmed(self) -> None:
        """In order; its history has the newest first."""
        store = self.make_schedule_store()
        epoch = _due(store, "s")

        assert store.claim([_claim("s", epoch, (1_000, 2_000), skipped=3)]) == [True]
        pending = store.tick("b", epoch, lease_ms=_LEASE_MS, most=10).pending
        assert [(one.id, one.schedule, one.planned_ms) for one in pending] == [
            ("s-1000", "s", 1_000),
            ("s-2000", "s", 2_000),
        ]
        assert pending[0].delivery == _delivery(1_000)
        assert pending[0].sequence < pending[1].sequence
        assert list(store.pending()) == list(pending)
        store.confirm([pending[0].item_id])
        left = store.tick("b", epoch, lease_ms=_LEASE_MS, most=10).pending
        assert [one.id for one in left] == ["s-2000"]
        behind = store.tick("b", epoch, lease_ms=_LEASE_MS, most=10, after=left[0].item_id)
        assert (behind.pending, list(store.pending())) == ((), list(left))

        state = _read(store, "s")
        assert (state.runs, state.skipped, state.last_planned_ms, state.last_id) == (2, 3, 2_000, "s-2000")
        assert (state.planned_ms, state.version) == (_HOUR_MS, 1)
        assert [one.id for one in store.history("s")] == ["s-2000", "s-1000"]
        assert [one.id for one in store.history("s", 1)] == ["s-2000"]

    def test_a_claim_is_refused_after_another_one_an_edit_or_another_leader(self) -> None:
        """Whole: nothing of it is pending."""
        store = self.make_schedule_store()
        epoch = _due(store, "s")
        claim = _claim("s", epoch, (1_000,))

        wrong = [replace(claim, epoch=epoch + 1), replace(claim, version=2), replace(claim, planned_ms=5)]
        assert store.claim(wrong) == [False] * 3
        assert store.claim([claim, replace(claim, name="unknown")]) == [True, False]
        assert store.claim([claim]) == [False]
        assert store.stats().pending == 1

    def test_of_many_claims_at_once_one_succeeds(self) -> None:
        """By whichever thread or process."""
        store = self.make_schedule_store()
        epoch = _due(store, "s")

        with ThreadPoolExecutor(8) as threads:
            claims = [[_claim("s", epoch, (1_000,))]] * 16
            replies = [reply for [reply] in threads.map(store.claim, claims)]

        assert replies.count(True) == 1
        assert store.stats().pending == 1

    def test_the_last_occurrence_ends_the_schedule(self) -> None:
        """It stays, with its history, and is not due any more."""
        store = self.make_schedule_store()
        epoch = _due(store, "s")

        store.claim([replace(_claim("s", epoch, (1_000,)), next_planned_ms=None, next_due_ms=None)])

        state = _read(store, "s")
        assert (state.planned_ms, state.due_ms, state.runs) == (None, None, 1)
        assert store.stats().waiting == 0

    def test_a_postponed_schedule_keeps_its_planned_time_and_says_why(self) -> None:
        """Until it can be claimed."""
        store = self.make_schedule_store()
        epoch = _due(store, "s")
        seen = _read(store, "s")

        assert store.postpone(seen, epoch, _HOUR_MS, "no time zone")
        now_ms, found = store.read("s")
        assert found is not None
        assert (found.planned_ms, found.error) == (1_000, "no time zone")
        assert found.due_ms is not None
        assert now_ms < found.due_ms <= now_ms + _HOUR_MS
        assert store.tick("b", epoch, lease_ms=_LEASE_MS, most=10).due == ()

        assert store.claim([_claim("s", epoch, (1_000,))]) == [True]
        found = _read(store, "s")
        assert found.error is None

    def test_an_edit_keeps_the_state(self) -> None:
        """Run count and last occurrence."""
        store = self.make_schedule_store()
        epoch = _due(store, "s")
        store.claim([_claim("s", epoch, (1_000,), skipped=2)])
        _, seen = store.read("s")

        store.put(_schedule("s", is_enabled=False), seen)

        found = _read(store, "s")
        assert (found.runs, found.skipped, found.last_planned_ms) == (1, 2, 1_000)
        assert (found.is_enabled, found.planned_ms, found.due_ms) == (False, None, None)


def _due(store: ScheduleStore, name: str) -> int:
    store.put(_schedule(name, planned_ms=1_000), None)
    return store.tick("b", 0, lease_ms=_LEASE_MS, most=10).epoch


def _schedule(name: str, **changes: Any) -> StoredSchedule:
    values: dict[str, Any] = {"version": 0, "is_enabled": True} | changes
    return StoredSchedule(name=name, definition=f"definition of {name}".encode(), **values)


def _claim(name: str, epoch: int, planned: tuple[int, ...], skipped: int = 0) -> Claim:
    return Claim(
        name=name,
        epoch=epoch,
        version=1,
        planned_ms=1_000,
        occurrences=[
            Occurrence(planned_ms=one, due_ms=one, id=f"{name}-{one}", delivery=_delivery(one))
            for one in planned
        ],
        skipped=skipped,
        next_planned_ms=_HOUR_MS,
        next_due_ms=_HOUR_MS,
    )


def _delivery(planned_ms: int) -> MessageDelivery:
    return MessageDelivery(kind="stream", name="orders", data=b'{"planned":%d}' % planned_ms)


def _read(store: ScheduleStore, name: str) -> StoredSchedule:
    _, found = store.read(name)
    assert found is not None
    return found


def _refused(change: Callable[[], object]) -> None:
    try:
        change()
    except ScheduleChangedError:
        return
    raise AssertionError("a change of what was not seen was accepted")
