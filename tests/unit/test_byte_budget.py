"""The bytes of messages that the threads of one process have in memory, all together."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from conquiet.consume.byte_budget import ByteBudget

MB = 1 << 20


def knowing(budget: ByteBudget, *sizes: int) -> ByteBudget:
    """It has seen messages of these sizes, and none of them is in memory any more."""
    for size in sizes:
        assert budget.ask("before")
        budget.report("before", [size])
    budget.leave("before")
    return budget


def test_until_the_first_message_tells_how_large_they_are_reads_take_turns():
    budget = ByteBudget(16 * MB)

    assert budget.ask("a")
    assert not budget.ask("b")
    budget.report("a", [])

    assert budget.ask("b")


def test_small_messages_of_many_channels_are_read_at_the_same_time():
    budget = knowing(ByteBudget(16 * MB), *[100] * 30)

    assert all(budget.ask(name) for name in "abcd")


def test_large_messages_of_all_channels_together_stay_within_the_budget():
    budget = knowing(ByteBudget(16 * MB), 5 * MB)

    assert [bool(budget.ask(name)) for name in "abcd"] == [True, True, True, False]


def test_what_a_read_has_brought_counts_until_the_next_one_of_its_channel():
    budget = knowing(ByteBudget(16 * MB), 9 * MB)
    assert budget.ask("a")
    budget.report("a", [9 * MB])

    assert not budget.ask("b")
    assert not budget.ask("a")
    assert budget.ask("b")


def test_those_that_wait_are_served_in_turn():
    budget = knowing(ByteBudget(16 * MB), 9 * MB)
    assert budget.ask("a")
    assert not budget.ask("b")
    assert not budget.ask("c")
    budget.report("a", [])

    assert not budget.ask("c")
    assert not budget.ask("a")
    assert budget.ask("b")


def test_one_that_leaves_keeps_nobody_waiting():
    budget = knowing(ByteBudget(16 * MB), 9 * MB)
    assert budget.ask("a")
    assert not budget.ask("b")
    budget.leave("b")
    budget.leave("a")

    assert budget.ask("c")


def test_a_message_larger_than_the_budget_is_read_when_nothing_else_is_in_memory():
    budget = knowing(ByteBudget(16 * MB), 100 * MB)

    assert budget.ask("a")
    assert not budget.ask("b")


def test_after_a_huge_message_nobody_waits_for_the_end_of_a_handler_with_a_small_one():
    budget = knowing(ByteBudget(16 * MB), 100 * MB)
    assert budget.ask("slow")
    budget.report("slow", [1_000])

    assert budget.ask("a")
    # One at a time, since the next may be huge too.
    assert not budget.ask("b")
    budget.report("a", [])
    assert budget.ask("b")


def test_after_a_lack_of_memory_there_is_less_down_to_one_message_at_a_time():
    budget = knowing(ByteBudget(16 * MB), 100)
    assert budget.ask("a")
    budget.report("a", [100])

    while budget.shrink() > 1:
        pass

    assert not budget.ask("b")
    budget.leave("a")
    assert budget.ask("b")


@given(
    most=st.integers(1, 100),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.integers(1, 40), max_size=3)), max_size=60),
)
def test_whatever_comes_somebody_can_always_read(most, steps):
    budget, has = ByteBudget(most), dict.fromkeys("abcd", False)
    for name, sizes in steps:
        if budget.ask(name):
            budget.report(name, sizes)

    for _ in range(4):
        for name in "abcd":
            if budget.ask(name):
                has[name] = True
                budget.report(name, [])

    assert all(has.values())


def test_one_that_waits_is_called_as_soon_as_others_have_read():
    budget = knowing(ByteBudget(16 * MB), 9 * MB)
    assert budget.ask("a")
    assert not budget.ask("b")
    assert not budget.ask("c")
    called: list[str] = []

    def wait(channel: str) -> None:
        # Far longer than the test may take: only a call ends it.
        while not budget.ask(channel):
            budget.wait(channel, 3600)
        called.append(channel)
        budget.report(channel, [])

    threads = [threading.Thread(target=wait, args=(channel,)) for channel in ("b", "c")]
    for thread in threads:
        thread.start()
    budget.report("a", [])
    for thread in threads:
        thread.join()

    assert called == ["b", "c"]
