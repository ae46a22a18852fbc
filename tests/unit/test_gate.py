"""The gate of a consumer's loops: so many inside at once, and those that wait go in in their order."""

from __future__ import annotations

import threading

from conquiet.consume.gate import Gate
from tests.eventually import eventually


def never():
    return False


def nothing():
    pass


def enter_at_once(gate):
    """Whether there is room now."""
    return gate.enter(lambda: True, nothing)


def test_a_gate_without_a_limit_lets_everybody_in():
    gate = Gate()
    assert all(enter_at_once(gate) for _ in range(100))
    gate.leave()


def test_no_more_are_inside_than_the_limit():
    gate = Gate(2)
    assert [enter_at_once(gate) for _ in range(3)] == [True, True, False]
    gate.leave()
    assert gate.enter(never, nothing)
    assert not enter_at_once(gate)


def test_one_that_leaves_and_comes_back_waits_behind_those_that_wait():
    gate, order = Gate(1), []
    assert enter_at_once(gate)

    def wait_for_turn(name):
        assert gate.enter(never, nothing)
        order.append(name)
        gate.leave()

    threads = []
    for name in "abc":
        threads.append(threading.Thread(target=wait_for_turn, args=(name,)))
        threads[-1].start()
        eventually(lambda: len(gate._waiting) == len(threads))
    gate.leave()
    assert gate.enter(never, nothing)
    order.append("first again")
    gate.leave()
    for thread in threads:
        thread.join()

    assert order == ["a", "b", "c", "first again"]


def test_one_that_is_stopped_while_it_waits_takes_no_place():
    gate = Gate(1)
    assert enter_at_once(gate)
    assert not enter_at_once(gate)
    gate.leave()
    assert enter_at_once(gate)
