"""Many observations at once count as the same ones made one by one."""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from conquiet.mq.metrics import emit, observe_all
from conquiet.queue.metrics import add_observations

_NAME = "conquiet_mq_handle_seconds"
#: On a bound, between two, above all of them.
_AMOUNTS = [0.0, 0.001, 0.0011, 0.25, 0.5, 0.25, 1800.0, 9999.0]


def samples_of(topic):
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.labels.get("topic") == topic and not sample.name.endswith("_created")
    }


def test_amounts_observed_together_count_as_if_observed_one_by_one():
    together, one_by_one = secrets.token_hex(4), secrets.token_hex(4)

    observe_all(_NAME, _AMOUNTS, together, "0", "billing")
    for amount in _AMOUNTS:
        emit(_NAME, amount, one_by_one, "0", "billing")

    assert samples_of(together)[f"{_NAME}_count", ""] == len(_AMOUNTS)
    assert samples_of(together) == pytest.approx(samples_of(one_by_one))


def test_amounts_are_observed_one_by_one_by_a_histogram_without_known_attributes():
    seen: list[Any] = []

    add_observations(SimpleNamespace(observe=seen.append), _AMOUNTS)

    assert seen == _AMOUNTS


def test_no_amounts_make_no_metric():
    topic = secrets.token_hex(4)

    observe_all(_NAME, [], topic, "0", "billing")

    assert samples_of(topic) == {}
