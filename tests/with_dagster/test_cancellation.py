"""Cancellation: a step that is told to stop ends between two messages."""

from __future__ import annotations

import os
import signal
import threading

import dagster as dg
import pytest

from dagster_conquiet import DrainSpec, build_drain_asset
from dagster_conquiet.steps.interrupts import interrupts_between_messages


def cancelled_run(stream, handler, resources, instance):
    spec = DrainSpec(stream=stream, group="billing", handler=f"tests.with_dagster.handlers:{handler}")
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        dg.materialize([build_drain_asset(spec)], resources=resources, instance=instance)


def test_a_step_that_is_told_to_stop_finishes_its_message_and_begins_no_other(
    stream, resources, instance, enqueue, effects_seen, client
):
    ids = enqueue(10)

    cancelled_run(stream, "interrupt_itself", resources, instance)

    assert effects_seen() == sorted(ids[:4])
    still_pending = {
        row["message_id"].decode() for row in client.xpending_range(stream, "billing", "-", "+", 100)
    }
    assert still_pending == set(ids[4:])


def test_a_second_interrupt_rolls_the_message_back_and_leaves_it_pending(
    stream, resources, instance, enqueue, effects_seen, client
):
    ids = enqueue(10)

    cancelled_run(stream, "interrupt_itself_twice", resources, instance)

    assert effects_seen() == sorted(ids[:3])
    still_pending = {
        row["message_id"].decode() for row in client.xpending_range(stream, "billing", "-", "+", 100)
    }
    assert still_pending == set(ids[3:])


def test_a_step_that_is_told_to_stop_is_canceled_although_every_message_failed(
    stream, resources, instance, enqueue, pending
):
    enqueue(5)

    cancelled_run(stream, "interrupt_itself_and_fail", resources, instance)

    assert pending() == 5


def test_the_handlers_that_were_there_before_are_there_again():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    with interrupts_between_messages() as is_told_to_stop:
        assert not is_told_to_stop()

    assert {number: signal.getsignal(number) for number in before} == before


def test_outside_the_main_thread_nothing_is_touched():
    told = []

    def work():
        with interrupts_between_messages() as is_told_to_stop:
            told.append(is_told_to_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert told == [False]


def test_without_an_earlier_handler_the_interrupt_is_raised_after_the_block():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    told = []

    def work():
        with interrupts_between_messages() as is_told_to_stop:
            os.kill(os.getpid(), signal.SIGTERM)
            told.append(is_told_to_stop())

    try:
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            work()
    finally:
        signal.signal(signal.SIGTERM, before)

    assert told == [True]
