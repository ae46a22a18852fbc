"""Handlers that the tests name on the command line."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from conquiet import batch_handler
from conquiet.mq import DeadLetter
from tests.eventually import HANG_S

_two = threading.Barrier(2)
_customers: set[str] = set()


@dataclass
class Numbered:
    """The payload of a message."""

    n: int


def accept_numbered(msg, session):
    """Fails on any other payload."""
    if type(msg.payload) is not Numbered:
        raise TypeError(f"not numbered: {msg.payload}")


def accept(msg, session):
    """Handles everything."""


def accept_alone(msg):
    """Handles everything, without a database."""


def fail_once(msg):
    """Fails at the first attempt."""
    if msg.attempt == 1:
        raise ValueError("not yet")


def refuse_three(msg, session):
    """Fails on the message with n = 3, and tells a URL with a password in its error."""
    if msg.payload["n"] == 3:
        raise ValueError("no three for redis://worker:tr0ub4dor@db.internal")


def exit_quietly(msg, session):
    """Ends the process as if all were well."""
    sys.exit(0)


def give_up(msg, *_session):
    """Makes a dead letter of everything."""
    return DeadLetter("given up")


def slow(msg, session):
    """Says that it began, and takes a while."""
    with Path(os.environ["BEGUN_FILE"]).open("a") as file:
        file.write(f"{msg.payload['n']}\n")
    time.sleep(0.3)


def wait_for_another(msg, *_session):
    """Ends when two messages are handled at once."""
    _two.wait(HANG_S)


def wait_for_another_customer(msg, *_session):
    """Ends when messages of two customers are handled at once; fails on two of one customer."""
    with _only_one_of(msg.payload["customer"]):
        _two.wait(HANG_S)


@contextmanager
def _only_one_of(customer: str) -> Iterator[None]:
    if customer in _customers:
        raise ValueError(f"two messages of {customer} at once")
    _customers.add(customer)
    yield
    _customers.discard(customer)


@batch_handler
def note_size(messages, session):
    """Writes how many messages it was given."""
    session.execute(text("CREATE TABLE IF NOT EXISTS sizes (n INTEGER)"))
    session.execute(text("INSERT INTO sizes VALUES (:n)"), {"n": len(messages)})
