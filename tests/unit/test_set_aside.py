"""Who is at fault when the database refuses what a message wrote."""

from __future__ import annotations

from conquiet import QueueMessage
from conquiet.consume.set_aside import SetAside
from conquiet.errors import InboxRowLockedError, WriteRefusedError

REFUSED, LOCKED = WriteRefusedError("disk full"), InboxRowLockedError("locked")


def message(number: int) -> QueueMessage:
    return QueueMessage("orders", "billing", f"1-{number}", {})


def aside_of(*errors: WriteRefusedError) -> SetAside[QueueMessage]:
    aside: SetAside[QueueMessage] = SetAside()
    for number, error in enumerate(errors):
        aside.add(message(number), error, 0.0)
    return aside


def test_a_message_is_at_fault_once_another_was_committed_after_its_refusal():
    aside = aside_of(REFUSED)

    before = aside.is_at_fault("1-0", max_alone=0)
    aside.suspect()

    assert (before, aside.is_at_fault("1-0", max_alone=0)) == (False, True)
    assert not aside.is_at_fault("1-1", max_alone=0)


def test_a_message_that_waits_for_its_inbox_row_is_never_at_fault():
    aside = aside_of(LOCKED, LOCKED)

    aside.suspect()

    assert not aside.is_at_fault("1-0", max_alone=1)
    assert aside.refused == 0


def test_a_message_that_alone_was_refused_too_often_is_at_fault_and_one_among_others_is_not():
    alone, one_of_two = aside_of(REFUSED), aside_of(REFUSED, REFUSED)
    for aside in (alone, one_of_two):
        aside.add(message(0), REFUSED, 0.0)

    assert [aside.is_at_fault("1-0", max_alone=1) for aside in (alone, one_of_two)] == [True, False]
    assert not alone.is_at_fault("1-0", max_alone=2)


def test_what_is_due_is_taken_once_and_what_is_left_is_handed_back():
    aside = aside_of(REFUSED, LOCKED)
    aside.suspect()

    due = aside.take_due()
    again = aside.take_due()

    assert ([msg.id for msg in due], again) == (["1-0"], [])
    assert [msg.id for msg in aside.take_all()] == ["1-1"]
