"""Wherever a worker dies: no message lost, none acked without its effect, with an inbox no effect twice."""

from __future__ import annotations

import signal

import pytest

from conquiet.testing.crash_points import Fault
from tests.crashes.conftest import KINDS, Explore
from tests.crashes.explorer import Exploration


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_run_loses_a_message(explore: Explore, kind: str):
    exploration = explore(f"run{kind}")

    assert_kept(exploration, points=15)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_run_with_an_inbox_repeats_an_effect(explore: Explore, kind: str):
    exploration = explore(f"run_inbox{kind}")

    assert_kept(exploration, points=25)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_loses_a_message(explore: Explore, kind: str):
    exploration = explore(f"drain{kind}")

    assert_kept(exploration, points=25)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_with_an_inbox_repeats_an_effect(explore: Explore, kind: str):
    exploration = explore(f"drain_inbox{kind}")

    assert_kept(exploration, points=35)


@pytest.mark.parametrize("scenario", ["drain_concurrent", "drain_concurrent_async", "drain_batches"])
def test_no_crash_point_of_several_messages_at_once_loses_one(explore: Explore, scenario: str):
    exploration = explore(scenario)

    assert_kept(exploration, points=20)


@pytest.mark.parametrize(
    "scenario",
    ["drain_concurrent_inbox", "drain_concurrent_continue", "drain_batches_inbox", "drain_failing_batch"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_several_messages_at_once_repeats_an_effect(
    explore: Explore, scenario: str, kind: str
):
    exploration = explore(f"{scenario}{kind}")

    assert_kept(exploration, points=20)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_that_renews_loses_a_message(explore: Explore, kind: str):
    exploration = explore(f"drain_renew{kind}")

    assert_kept(exploration, points=15)
    assert "redis EVALSHA replied" in exploration.points


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_that_raises_loses_what_it_hands_back(explore: Explore, kind: str):
    exploration = explore(f"drain_handler_fails{kind}")

    assert_kept(exploration, points=20)
    assert "redis EVALSHA replied" in exploration.points


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_that_continues_loses_the_failed_message(explore: Explore, kind: str):
    exploration = explore(f"drain_continue{kind}")

    assert_kept(exploration, points=20)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_drain_stale_loses_a_message_or_dead_letters_it_twice(explore: Explore, kind: str):
    exploration = explore(f"drain_stale{kind}")

    assert_kept(exploration, points=20)
    # Coroutines of a batch come to their scripts in another order from point to point.
    assert kind or exploration.points.count("redis EVALSHA sent") == 4


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_drain_stale_with_an_inbox_repeats_an_effect(explore: Explore, kind: str):
    exploration = explore(f"drain_stale_inbox{kind}")

    assert_kept(exploration, points=25)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_drain_stale_dead_letters_what_is_committed(explore: Explore, kind: str):
    exploration = explore(f"drain_stale_over_max_deliveries{kind}")

    assert_kept(exploration, points=15)


@pytest.mark.parametrize("fault", ["crash", "lost_answer"])
def test_no_crash_point_of_a_replay_loses_a_message(explore: Explore, fault: Fault):
    exploration = explore("replay", fault)

    assert exploration.violations == [], exploration
    assert exploration.points.count("redis EVALSHA sent") == 3


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_with_traces_repeats_an_effect(explore: Explore, kind: str):
    exploration = explore(f"drain_traced{kind}")

    assert_kept(exploration, points=25)
    assert "redis XACK replied" in exploration.points


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_task_that_is_tried_again_repeats_an_effect(explore: Explore, kind: str):
    exploration = explore(f"drain_take_back{kind}")

    assert_kept(exploration, points=20)


def test_no_crash_point_of_a_relay_loses_an_outbox_message_or_changes_their_order(explore: Explore):
    exploration = explore("outbox_relay")

    assert_kept(exploration, points=25)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_parts_an_effect_from_its_outbox_message(explore: Explore, kind: str):
    exploration = explore(f"handler_with_outbox{kind}")

    assert_kept(exploration, points=20)


@pytest.mark.parametrize(
    "scenario",
    [
        *("run", "drain", "drain_handler_fails", "drain_stale", "outbox_relay"),
        *("run_async", "drain_async", "drain_handler_fails_async", "drain_stale_async"),
    ],
)
def test_no_lost_answer_loses_a_message(explore: Explore, scenario: str):
    exploration = explore(scenario, "lost_answer")

    assert_kept(exploration, points=15)


def test_the_explorer_catches_an_ack_before_the_commit(explore: Explore):
    exploration = explore("ack_before_commit")

    assert "redis XACK sent" in first_violation(exploration)
    assert "was acked without its committed effect" in first_violation(exploration)


@pytest.mark.parametrize("loop", ["ack_of_a_neighbour", "ack_of_a_batch_before_its_commit"])
def test_the_explorer_catches_an_ack_of_another_message_than_the_committed_one(explore: Explore, loop: str):
    exploration = explore(loop)

    assert "redis XACK sent" in first_violation(exploration)
    assert "was acked without its committed effect" in first_violation(exploration)


def test_the_explorer_catches_a_hole_between_two_commands_of_a_pipeline(explore: Explore):
    exploration = explore("ack_before_dead_letter")

    assert {violation.split(":")[0] for violation in exploration.violations} == {
        "after point 3 (redis XACK sent)"
    }


def test_the_explorer_catches_an_ack_in_the_cleanup_after_an_error(explore: Explore):
    exploration = explore("ack_in_finally", "lost_answer")

    assert "sql INSERT" in first_violation(exploration)
    assert "was acked without its committed effect" in first_violation(exploration)


def test_the_explorer_catches_an_inbox_row_after_the_commit(explore: Explore):
    exploration = explore("record_after_commit")

    assert "sql COMMIT" in first_violation(exploration)
    assert "has its effect twice" in first_violation(exploration)


def test_the_explorer_catches_a_relay_that_removes_before_it_publishes(explore: Explore):
    exploration = explore("remove_before_publish")

    assert "sql COMMIT" in first_violation(exploration)
    assert "lost its outbox message" in first_violation(exploration)


def test_the_explorer_reports_a_scenario_without_an_end(explore: Explore):
    exploration = explore("ack_forever")

    assert exploration.violations == ["the scenario did not end within 10 points"]


def test_the_explorer_kills_and_reports_a_child_that_hangs(explore: Explore):
    exploration = explore("hang")

    assert len(exploration.violations) == 1
    assert f"the child ended with status {-signal.SIGALRM}" in exploration.violations[0]


def test_the_explorer_reports_a_scenario_that_fails(explore: Explore):
    exploration = explore("fail")

    assert exploration.violations == ["the child ended with status 1 after the start"]


def assert_kept(exploration: Exploration, *, points: int) -> None:
    """No violation, and proof that there was something to see: enough points, some between commit and ack."""
    assert exploration.violations == [], exploration
    assert len(exploration.points) >= points, exploration
    assert exploration.redelivered > 0, exploration


def first_violation(exploration: Exploration) -> str:
    assert exploration.violations, f"nothing was caught: {exploration}"
    return exploration.violations[0]
