"""Handlers that the tests name on the command line."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from conquiet.mq import DeadLetter


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
