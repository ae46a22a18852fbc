"""The tool shows a server that another version and other programs have written to."""

from __future__ import annotations

import json
import math
import os

import pytest

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from conquiet.queue import open_client
from tests.upgrade.later import UNDELIVERED, later_version
from tests.upgrade.record import BILLING, LEDGER, STATES, STREAM, TOPIC
from tests.upgrade.state import write_state


@pytest.fixture
def run(anywhere, monkeypatch):
    with EmbeddedServer() as server, open_client(server.url) as client:
        (*_, newest) = sorted(STATES.glob("*.json"))
        write_state(client, later_version(json.loads(newest.read_text())))
        monkeypatch.setenv("CONQUIET_REDIS_URL", server.url)
        yield anywhere


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (f"stats {TOPIC}", "worker-\\xff"),
        (f"stats {STREAM}", LEDGER),
        (f"pending {TOPIC} --group {BILLING}", "billing-0"),
        (f"pending {STREAM} --group {LEDGER}", "worker-\\xff"),
        (f"groups list {TOPIC}", "worker-\\xff"),
        (f"consumers prune {TOPIC} --group {BILLING} --dry-run", "0 consumers"),
        ("topics list", TOPIC),
        (f"dlq list {TOPIC}", UNDELIVERED),
        (f"dlq show {TOPIC} {UNDELIVERED}", "schema version 2, this conquiet reads up to 1"),
        (f"trim {TOPIC} --keep 5 --dry-run", "worker-\\xff has not begun there"),
        ("watch --once", f"{TOPIC}/{BILLING}"),
    ],
)
def test_every_command_shows_what_another_version_left(run, command, shown):
    ran = run(*command.split())

    assert (ran.code, shown in ran.out) == (0, True), (ran.out, ran.err)


def test_the_doctor_examines_what_another_version_left(run):
    ran = run("doctor", "--json")

    # An error of the server's settings: it does not write to disk.
    assert ran.code == 1, ran.err
    assert TOPIC in ran.out


@pytest.mark.parametrize("command", [f"dlq list {TOPIC}", f"delayed list {TOPIC}"])
def test_a_time_beyond_every_calendar_ends_no_list(run, command):
    with open_client(os.environ["CONQUIET_REDIS_URL"]) as client:
        keys = Topics(client).open(TOPIC).keys
        client.xadd(keys.dead_letters(0), {"data": json.dumps({"deadLetteredAt": 10**30})})
        client.zadd(keys.delayed(0), {"never": math.inf, "long ago": -math.inf, "late": 1e30})

    ran = run(*command.split())

    assert ran.code == 0, ran.err
