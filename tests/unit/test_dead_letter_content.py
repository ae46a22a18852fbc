"""What a dead letter has of a message that can be read in one place and not in another."""

from __future__ import annotations

import sys
from typing import Any

from conquiet.consume.dead_letter import message_content, raw_content, writable_content
from conquiet.queue import QueueMessage


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


def test_what_can_be_read_and_written_is_kept_as_it_is():
    content: dict[str, Any] = {"headers": {}, "envelope": {"a": 1}}

    assert writable_content(lambda: content, b"{}") == content


def test_what_is_nested_too_deeply_to_be_written_is_kept_with_its_bytes():
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]

    assert writable_content(lambda: {"payload": deep}, b"data") == raw_content([(b"data", b"data")])


def test_a_message_at_any_depth_has_content():
    # Somewhere in between it is read where the stack is short, and refused where it is deep.
    for depth in range(1, 2 * sys.getrecursionlimit(), 7):
        data = nested(depth)
        msg = QueueMessage("orders", "billing", "1-1", {}, 1, data)

        found = message_content(msg)

        assert "envelope" in found or found == raw_content([(b"data", data)])
