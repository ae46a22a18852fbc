"""enqueue_once: what is sent again under the same id is there once."""

from __future__ import annotations

import pytest

from conquiet import StreamWriter
from tests.eventually import eventually

PAYLOADS = [{"n": n} for n in range(1_201)]


def test_a_second_call_adds_nothing_and_returns_the_first_ones_ids(queue, client, stream):
    first = queue.enqueue_once(PAYLOADS, dedupe_id="run-7")
    second = queue.enqueue_once(PAYLOADS, dedupe_id="run-7")

    assert second == first
    assert [entry_id.decode() for entry_id, _ in client.xrange(stream)] == first


def test_the_messages_are_read_in_order(queue):
    queue.enqueue_once(PAYLOADS[:30], dedupe_id="run-7")

    assert [msg.payload for msg in queue.read(50, count=100)] == PAYLOADS[:30]


def test_what_a_call_that_died_had_not_added_is_added_by_the_next(queue, client, stream):
    some = queue.enqueue_once(PAYLOADS[:700], dedupe_id="run-7")

    all_ids = queue.enqueue_once(PAYLOADS, dedupe_id="run-7")

    assert all_ids[:700] == some
    assert client.xlen(stream) == len(PAYLOADS)


def test_another_id_and_another_stream_are_other_messages(make_queue, queue, client, stream):
    queue.enqueue_once(PAYLOADS[:2], dedupe_id="run-7")
    queue.enqueue_once(PAYLOADS[:2], dedupe_id="run-8")

    assert client.xlen(stream) == 4


def test_after_its_window_the_id_is_forgotten(queue, client, stream):
    queue.enqueue_once(PAYLOADS[:1], dedupe_id="run-7", window_ms=1)

    eventually(lambda: not client.keys(f"*{stream}*once*"))
    queue.enqueue_once(PAYLOADS[:1], dedupe_id="run-7")

    assert client.xlen(stream) == 2


def test_one_refused_payload_and_none_is_added(queue, client, stream):
    with pytest.raises(ValueError, match="JSON"):
        queue.enqueue_once([{"n": 1}, {"n": float("nan")}], dedupe_id="run-7")

    assert client.xlen(stream) == 0


@pytest.mark.parametrize("wrong", ["", None, 7])
def test_an_id_that_is_no_name_is_refused(queue, wrong):
    with pytest.raises((ValueError, TypeError), match="dedupe_id"):
        queue.enqueue_once([{"n": 1}], dedupe_id=wrong)


def test_named_payloads_are_added_once_in_any_order_and_it_is_known_which_are_new(client, stream):
    writer = StreamWriter(client, stream)
    first = writer.enqueue_named(PAYLOADS[:3], ["a", "b", "c"], dedupe_id="run-8")
    second = writer.enqueue_named([PAYLOADS[3], PAYLOADS[1]], ["d", "b"], dedupe_id="run-8")

    assert [added.is_new for added in first] == [True, True, True]
    assert [added.is_new for added in second] == [True, False]
    assert second[1].entry_id == first[1].entry_id
