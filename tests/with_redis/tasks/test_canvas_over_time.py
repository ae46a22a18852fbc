"""Canvases with steps that come later, by the clock of the test bed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from conquiet.tasks import Retry, Task, TaskApp, TaskCall, TaskHandle, chain, chord, group
from conquiet.tasks.canvas import Chain
from conquiet.tasks.canvas.nodes import OnError
from conquiet.testing import TaskTestBed

DAY_S = 86_400

Ran = list[Any]


@pytest.fixture
def app() -> Iterator[TaskApp]:
    with TaskApp("redis://127.0.0.1:1/0") as opened:
        yield opened


@pytest.fixture
def bed(app: TaskApp) -> Iterator[TaskTestBed]:
    with TaskTestBed(app) as opened:
        yield opened


@pytest.fixture
def ran() -> Ran:
    return []


@pytest.fixture
def note(app: TaskApp, ran: Ran) -> Task[..., int]:
    @app.task
    def note(number: int) -> int:
        ran.append(number)
        return number

    return note


@pytest.fixture
def join(app: TaskApp, ran: Ran) -> Task[..., int]:
    @app.task(queue="other", priority=7)
    def join(numbers: list[Any]) -> int:
        ran.append(numbers)
        return len(numbers)

    return join


def state_of(handle: TaskHandle) -> str | None:
    status = handle.status()
    return None if status is None else status.state.value


def test_the_body_of_a_chord_waits_for_its_delay_from_its_last_member_on(
    bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran
) -> None:
    members = [note.call(1), note.with_options(delay_s=60).call(2)]
    handle = chord(members, join.with_options(delay_s=3600).partial()).enqueue()
    bed.run_until_idle()
    bed.move_clock(seconds=60)
    bed.run_until_idle()
    assert state_of(handle) == "queued"

    bed.move_clock(seconds=3599)
    bed.run_until_idle()
    assert ran == [1, 2]
    bed.move_clock(seconds=1)
    bed.run_until_idle()

    assert ran == [1, 2, [1, 2]]
    assert state_of(handle) == "succeeded"


def test_a_step_with_an_eta_waits_for_that_time_whenever_the_one_before_ends(
    bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran
) -> None:
    eta = bed.now + timedelta(hours=1)
    late = note.with_options(delay_s=3000)
    chord([late.call(1)], join.with_options(eta=eta).partial()).enqueue()
    chain(late.call(2), note.with_options(eta=eta).partial()).enqueue()
    chord([note.with_options(delay_s=7200).call(3)], join.with_options(eta=eta).partial()).enqueue()
    bed.move_clock(seconds=3000)
    bed.run_until_idle()
    bed.move_clock(seconds=599)
    bed.run_until_idle()
    assert ran == [1, 2]
    bed.move_clock(seconds=1)
    bed.run_until_idle()
    assert len(ran) == 4
    assert [1] in ran

    # Its time is over: at once.
    bed.move_clock(seconds=3600)
    bed.run_until_idle()
    assert ran[4:] == [3, [3]]


def test_a_group_outlives_the_delays_of_its_members_and_of_the_task_behind_it(
    bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran
) -> None:
    later, much_later = (note.with_options(delay_s=days * DAY_S) for days in (25, 40))
    members: list[TaskCall | Chain] = [note.call(1), chain(later.call(2), later.partial())]
    handle = chord(members, join.with_options(delay_s=40 * DAY_S).partial()).enqueue()
    plain = group(note.call(3), much_later.call(4)).enqueue()
    for days in (25, 25, 40):
        bed.run_until_idle()
        bed.move_clock(days=days)
    bed.run_until_idle()

    assert ran[-1] == [1, 2]
    assert state_of(handle) == "succeeded"
    assert plain.status().left == 0


def test_each_member_that_is_counted_prolongs_the_results_of_all_others(
    app: TaskApp, bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran
) -> None:
    # More members than are in one key.
    members = [note.call(number) for number in range(1_001)]
    slow = note.with_options(queue="slow")
    for queue in ("slow", "other"):
        app.control.pause(queue, timeout_s=0.01)
    handle = chord([*members, slow.call(1_001)], join.partial()).enqueue()
    bed.run_until_idle()
    bed.move_clock(days=29)
    app.control.resume("slow", timeout_s=0.01)
    bed.run_until_idle()
    bed.move_clock(days=29)
    app.control.resume("other", timeout_s=0.01)
    bed.run_until_idle()

    assert ran[-1] == list(range(1_002))
    assert state_of(handle) == "succeeded"


def test_a_member_whose_group_is_gone_is_reported(
    app: TaskApp, bed: TaskTestBed, note: Task[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    handle = group(note.call(1)).enqueue()
    app.client.delete(app.keys("default").group(handle.id))

    with caplog.at_level(logging.WARNING, logger="conquiet.tasks"):
        bed.run_until_idle()

    assert f"member 0 of group {handle.id} in queue 'default' has ended, and the group is gone" in caplog.text


def test_what_was_revoked_stays_so_however_long_it_is_delayed(
    app: TaskApp, bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran
) -> None:
    @app.task
    def wait() -> Retry:
        return Retry(40 * DAY_S * 1000, "not yet")

    later = note.with_options(delay_s=40 * DAY_S)
    handles = [
        chain(later.call(1), note.partial()).enqueue(),
        chain(chord([note.call(2), later.call(3)], join.partial()), note.partial()).enqueue(),
        wait.enqueue(),
    ]
    bed.run_until_idle()
    for handle in handles:
        handle.revoke()
    ran.clear()
    bed.move_clock(days=41)
    bed.run_until_idle()

    assert ran == []
    assert app.control.queue("default").delayed == 0
    assert [state_of(handle) for handle in handles] == ["revoked"] * 3


@pytest.mark.parametrize("on_error", ["fail", "pass"])
def test_a_delayed_step_behind_one_that_ran_when_its_canvas_was_revoked_ends_at_once(
    app: TaskApp, bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran, on_error: OnError
) -> None:
    handles: list[TaskHandle] = []

    @app.task
    def revoke() -> int:
        handles[-1].revoke()
        return 1

    late_note, late_join = (task.with_options(delay_s=40 * DAY_S) for task in (note, join))
    body = chord([revoke.call()], late_join.partial(), on_error=on_error)
    for canvas in (chain(revoke.call(), late_note.partial(), note.partial()), chain(body, note.partial())):
        handles.append(canvas.enqueue())
        bed.run_until_idle()

    assert [app.control.queue(queue).delayed for queue in ("default", "other")] == [0, 0]
    assert [state_of(handle) for handle in handles] == ["revoked", "revoked"]
    assert ran == []


@pytest.mark.parametrize("on_error", ["fail", "pass"])
def test_a_canvas_that_was_revoked_says_so_at_once_and_in_the_end(
    bed: TaskTestBed, note: Task[..., int], join: Task[..., int], ran: Ran, on_error: OnError
) -> None:
    later = note.with_options(delay_s=60)
    members = [note.call(1), later.call(2)]
    handles = [
        chord(members, join.partial(), on_error=on_error).enqueue(),
        chain(chord(members, join.partial(), on_error=on_error), note.partial()).enqueue(),
        chain(later.call(3), note.partial()).enqueue(),
    ]
    bed.run_until_idle()
    assert all(handle.revoke().is_revoked for handle in handles)

    assert [state_of(handle) for handle in handles] == ["revoked"] * 3
    bed.move_clock(seconds=60)
    bed.run_until_idle()
    assert [state_of(handle) for handle in handles] == ["revoked"] * 3
    assert ran == [1, 1]


def test_a_chord_of_which_only_a_member_was_revoked_has_failed(
    app: TaskApp, bed: TaskTestBed, note: Task[..., int], join: Task[..., int]
) -> None:
    handle = chord([note.call(1)], join.partial()).enqueue()
    [member] = app.control.tasks("default", "queued").tasks
    app.revoke(member.id, "default")
    bed.run_until_idle()

    assert state_of(handle) == "dead_lettered"
