"""Errors travel between processes with their facts."""

from __future__ import annotations

import pickle

import pytest

from conquiet import (
    DbError,
    DrainError,
    DrainFailure,
    DrainReport,
    EmbeddedServerError,
    MalformedEntry,
    MalformedEntryError,
    QueueError,
    QueueMessage,
)
from conquiet.errors import LeaseLostError, TopicError

ERRORS = [
    QueueError("XADD", stream="orders", group="billing", reason="away"),
    MalformedEntryError(
        "XREADGROUP",
        stream="orders",
        group="billing",
        entries=[MalformedEntry("1-1", ((b"a", b"\xff"),), 1, "odd")],
        messages=[QueueMessage("orders", "billing", "1-2", {"n": 1})],
    ),
    DbError("not committed"),
    DrainError(
        stream="orders",
        group="billing",
        report=DrainReport(stream="orders", group="billing"),
        failures=[DrainFailure("1-1", ValueError("bad"))],
    ),
    EmbeddedServerError("no binary", facts={"path": "nowhere"}),
    TopicError("orders", "is not there"),
    LeaseLostError(topic="orders", group="billing", partition=3, owner="anna", epoch=7),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_facts(error):
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {name: repr(fact) for name, fact in vars(copy).items()} == {
        name: repr(fact) for name, fact in vars(error).items()
    }
