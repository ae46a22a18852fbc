"""QueueConfig: refusals name the argument and the value."""

from __future__ import annotations

import os
from typing import Any

import pytest

from conquiet import QueueConfig, unique_consumer_name

NAMES: dict[str, Any] = {"stream_key": "orders", "consumer_group": "billing", "consumer_name": "worker-1"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["", None, 7, b"bytes", "\ud800"])
def test_a_name_that_redis_cannot_carry_is_refused(name, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        QueueConfig(**NAMES | {name: value})

    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", ["block_ms", "max_read_count", "claim_idle_ms"])
@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, None, "5"])
def test_a_number_that_is_no_positive_int_is_refused(name, value):
    with pytest.raises((TypeError, ValueError)) as caught:
        QueueConfig(**NAMES, **{name: value})

    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_config_is_frozen():
    config = QueueConfig(**NAMES)

    with pytest.raises(AttributeError):
        config.block_ms = 1  # type: ignore[misc]


def test_consumer_names_are_unique_short_and_tell_the_process():
    names = {unique_consumer_name() for _ in range(1_000)}

    assert len(names) == 1_000
    assert all(len(name) <= 40 and f"-{os.getpid()}-" in name for name in names)
    assert unique_consumer_name("drain").startswith("drain-")
