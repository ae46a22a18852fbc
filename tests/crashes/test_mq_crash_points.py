"""Wherever a member of the MQ dies: no message lost, none settled without its effect, none there twice."""

from __future__ import annotations

import pytest

from tests.crashes.conftest import KINDS, Explore
from tests.crashes.explorer import Exploration


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_send_that_is_made_again_loses_a_message_or_adds_it_twice(
    explore: Explore, kind: str
):
    exploration = explore(f"mq_send{kind}")

    assert_kept(exploration, points=4)


def test_no_crash_point_of_the_mover_loses_a_delayed_message_or_adds_it_twice(explore: Explore):
    exploration = explore("mq_delayed")

    assert_kept(exploration, points=1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_partition_worker_repeats_an_effect(explore: Explore, kind: str):
    exploration = explore(f"mq_consume{kind}")

    assert_kept(exploration, points=20, has_redelivered=True)
    assert "redis XREAD sent" in exploration.points


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_partition_worker_without_an_inbox_loses_a_message(explore: Explore, kind: str):
    exploration = explore(f"mq_consume_without_inbox{kind}")

    assert_kept(exploration, points=15, has_redelivered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_worker_that_stops_loses_what_it_hands_back(explore: Explore, kind: str):
    exploration = explore(f"mq_stop{kind}")

    assert_kept(exploration, points=10, has_redelivered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_retry_in_place_loses_the_message(explore: Explore, kind: str):
    exploration = explore(f"mq_retry{kind}")

    assert_kept(exploration, points=30, has_redelivered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_changes_the_order_of_a_key_with_strict_ordering(explore: Explore, kind: str):
    exploration = explore(f"mq_retry_strict{kind}")

    assert_kept(exploration, points=30, has_redelivered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_loses_a_message_whose_content_is_loaded_later(explore: Explore, kind: str):
    exploration = explore(f"mq_unloaded{kind}")

    assert_kept(exploration, points=30, has_redelivered=True)
    assert "redis XRANGE sent" in exploration.points


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_with_several_messages_in_handlers_changes_the_order_of_a_key(
    explore: Explore, kind: str
):
    exploration = explore(f"mq_concurrent{kind}")

    assert_kept(exploration, points=30, has_redelivered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_requeued_retry_loses_the_message_or_adds_two_copies(explore: Explore, kind: str):
    exploration = explore(f"mq_requeue{kind}")

    assert_kept(exploration, points=30, has_redelivered=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_loses_a_message_on_its_way_to_the_dead_letters_or_leaves_it_in_both(
    explore: Explore, kind: str
):
    exploration = explore(f"mq_dead_letter{kind}")

    assert_kept(exploration, points=20)


def test_no_crash_point_of_giving_up_a_poison_message_touches_the_one_behind_it(explore: Explore):
    exploration = explore("mq_poison")

    assert_kept(exploration, points=12)


@pytest.mark.parametrize("fault", ["crash", "lost_answer"])
@pytest.mark.parametrize("scenario", ["mq_last_attempt", "mq_last_attempt_async", "mq_last_attempt_requeue"])
def test_no_message_that_was_committed_at_its_last_attempt_becomes_a_dead_letter(
    explore: Explore, scenario: str, fault: str
):
    exploration = explore(scenario, fault)

    assert_kept(exploration, points=12)
    assert "sql COMMIT" in exploration.points


def test_no_crash_point_of_a_replay_that_is_made_again_loses_a_message_or_adds_two_copies(explore: Explore):
    exploration = explore("mq_replay")

    assert_kept(exploration, points=4)


def test_no_crash_point_leaves_a_group_that_begins_in_some_partitions_alone(explore: Explore):
    exploration = explore("mq_create_group")

    assert_kept(exploration, points=3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_drain_of_a_whole_topic_loses_a_message_or_repeats_an_effect(
    explore: Explore, kind: str
):
    exploration = explore(f"mq_drain_topic{kind}")

    assert_kept(exploration, points=40, has_redelivered=True)
    assert "sql COMMIT" in exploration.points


@pytest.mark.parametrize(
    "scenario", ["mq_two_at_once", "mq_two_at_once_async", "mq_batches", "mq_batches_async"]
)
def test_no_crash_point_of_several_messages_at_once_or_in_one_transaction_loses_one_or_repeats_an_effect(
    explore: Explore, scenario: str
):
    exploration = explore(scenario)

    assert_kept(exploration, points=25, has_redelivered=True)
    assert "sql COMMIT" in exploration.points


@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_point_of_a_take_over_loses_what_the_dead_left_or_repeats_what_they_did(
    explore: Explore, kind: str
):
    exploration = explore(f"mq_take_over{kind}")

    assert_kept(exploration, points=18, has_redelivered=True)


@pytest.mark.parametrize(
    "scenario", ["mq_take_over_waiting_key", "mq_take_over_due_key", "mq_take_over_due_key_async"]
)
def test_no_crash_point_of_a_take_over_changes_the_order_of_a_key_that_waits(explore: Explore, scenario: str):
    exploration = explore(scenario)

    assert_kept(exploration, points=15, has_redelivered=True)


def test_no_crash_point_loses_what_waits_behind_a_message_that_was_settled_by_hand(explore: Explore):
    exploration = explore("mq_gone_head")

    assert_kept(exploration, points=15, has_redelivered=True)
    # Also what was behind it, in the life of the same consumer.
    assert exploration.points.count("sql COMMIT") == 4


@pytest.mark.parametrize(
    "scenario",
    [
        "mq_send",
        "mq_consume",
        "mq_retry_strict",
        "mq_unloaded",
        "mq_dead_letter",
        "mq_take_over",
        "mq_replay",
        "mq_create_group",
        "mq_drain_topic",
        "mq_send_async",
        *("mq_consume_async", "mq_retry_strict_async", "mq_dead_letter_async", "mq_take_over_async"),
    ],
)
def test_no_lost_answer_loses_a_message_or_ends_the_consumer(explore: Explore, scenario: str):
    exploration = explore(scenario, "lost_answer")

    assert_kept(exploration, points=4)


@pytest.mark.parametrize("kind", KINDS)
def test_no_lost_answer_repeats_the_effect_of_a_message_that_is_requeued(explore: Explore, kind: str):
    exploration = explore(f"mq_requeue_twice{kind}", "lost_answer")

    assert_kept(exploration, points=30)


def test_the_explorer_catches_a_retry_that_is_acked_before_it_is_scheduled(explore: Explore):
    exploration = explore("mq_ack_before_schedule")

    assert "redis XACK sent" in first_violation(exploration)
    assert "is lost" in first_violation(exploration)


def test_the_explorer_catches_a_retry_that_is_acked_after_its_copy_was_added(explore: Explore):
    exploration = explore("mq_schedule_before_ack")

    assert "redis XADD sent" in first_violation(exploration)
    assert "is there more than once" in first_violation(exploration)


def test_the_explorer_catches_a_replay_in_two_steps(explore: Explore):
    exploration = explore("mq_replay_in_two_steps")

    assert "redis XADD sent" in first_violation(exploration)
    assert any("was added more than 2 times" in violation for violation in exploration.violations)


def test_the_explorer_catches_a_dedupe_id_that_is_remembered_after_the_send(explore: Explore):
    exploration = explore("mq_send_and_then_remember")

    assert "redis XADD sent" in first_violation(exploration)
    assert any("was added more than 1 times" in violation for violation in exploration.violations)


def test_the_explorer_catches_a_group_that_is_created_one_partition_after_the_other(explore: Explore):
    exploration = explore("mq_create_group_one_by_one")

    assert "redis XGROUP sent" in first_violation(exploration)
    assert any("is before the group, and was handled" in violation for violation in exploration.violations)


def test_the_explorer_catches_a_retry_that_lets_later_messages_of_its_key_pass(explore: Explore):
    exploration = explore("mq_retry_without_strict")

    assert "the effects of key a came in the order [2, 1]" in first_violation(exploration)


def assert_kept(exploration: Exploration, *, points: int, has_redelivered: bool = False) -> None:
    """No violation, and proof that there was something to see: enough points, some between commit and ack."""
    assert exploration.violations == [], exploration
    assert len(exploration.points) >= points, exploration
    assert exploration.redelivered > 0 or not has_redelivered, exploration


def first_violation(exploration: Exploration) -> str:
    assert exploration.violations, f"nothing was caught: {exploration}"
    return exploration.violations[0]
