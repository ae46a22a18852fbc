"""The ACL lines of docs/security.md: each is enough for its role, none has a command too many."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from conquiet import ConquietError, EmbeddedServer, QueueError
from conquiet.mq import DeadLetters, MqAdmin, Topics
from conquiet.queue import open_client
from tests.cli import roles
from tests.services import REDIS_KINDS, redis_binary, unavailable

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
LINES = dict(re.findall(r"^user (\S+) on (.*)$", PAGE.read_text(), re.MULTILINE))
PASSWORD = "a-pa55w/rd"

#: As Valkey, Redis 7 and Redis 6.2 put it, inside and outside of scripts.
REFUSED = r"(?i)permission|NOPERM|can't run this command"

#: What must have been done before the role can work, and what it does.
PARTS = {
    "stream-producer": ([], roles.stream_producer),
    "stream-consumer": ([roles.stream_producer], roles.stream_consumer),
    "stream-admin": ([roles.stream_producer, roles.leave_stream_consumers], roles.stream_admin),
    "mq-producer": ([], roles.mq_producer),
    "mq-consumer": ([roles.mq_producer], roles.mq_consumer),
    "mq-admin": ([roles.mq_producer, roles.leave_dead_letters, roles.leave_mq_group], roles.mq_admin),
}


@pytest.fixture(scope="module", params=REDIS_KINDS)
def server(request):
    """A server of the test's own: its users and all of its keys belong to it."""
    binary = redis_binary(request.param)
    if binary is None:
        unavailable("redis", f"no binary for {request.param}")
    with EmbeddedServer(binary=binary) as started:
        yield started


@pytest.fixture
def everything(server):
    """A client that may do everything."""
    with open_client(server.url) as client:
        yield client


@contextmanager
def as_user(server, everything, name: str, rules: str):
    everything.execute_command(
        "ACL", "SETUSER", name, "reset", "on", *rules.replace("PASSWORD", PASSWORD).split()
    )
    encoded = PASSWORD.replace("/", "%2F")
    with open_client(f"redis://{name}:{encoded}@127.0.0.1:{server.port}/0") as client:
        yield client


def prepare(everything, role: str) -> None:
    for key in everything.scan_iter("*"):
        everything.delete(key)
    # As after a failover: scripts are sent in full again.
    everything.script_flush()
    if role.startswith("mq"):
        Topics(everything).create(roles.TOPIC, 2)
    for earlier in PARTS[role][0]:
        earlier(everything)


def works(server, everything, role: str, rules: str) -> bool:
    prepare(everything, role)
    with as_user(server, everything, role, rules) as client:
        try:
            PARTS[role][1](client)
        except (ConquietError, redis.RedisError, AssertionError):
            return False
    return True


def test_every_role_has_a_line():
    assert set(LINES) == set(PARTS)


@pytest.mark.parametrize("role", PARTS)
def test_the_line_of_a_role_is_enough_for_its_work(server, everything, role):
    prepare(everything, role)

    with as_user(server, everything, role, LINES[role]) as client:
        PARTS[role][1](client)


@pytest.mark.parametrize("role", [role for role in PARTS if not role.endswith("admin")])
def test_producers_and_consumers_cannot_do_what_only_an_administrator_should(server, everything, role):
    prepare(everything, "mq-admin")
    roles.stream_producer(everything)
    everything.xgroup_create(roles.STREAM, roles.GROUP, "0-0")
    everything.set("somebody-elses", "value")
    name = roles.TOPIC
    with as_user(server, everything, role, LINES[role]) as client:
        stream = roles.STREAM if role.startswith("stream") else "stream:topic:orders:p:0"
        forbidden = [
            lambda: Topics(client).delete(name),
            lambda: Topics(client).create("refunds"),
            lambda: Topics(client).grow(name, 3),
            lambda: MqAdmin(client).reset_group(name, roles.ADMINISTERED, "end", dry_run=False),
            lambda: MqAdmin(client).delete_group(name, roles.ADMINISTERED, force=True),
            lambda: MqAdmin(client).trim(name, retention_length=0),
            lambda: DeadLetters(Topics(client).open(name)).purge(older_than_ms=0),
            lambda: client.xtrim(stream, 0),
            lambda: client.xdel(stream, "1-1"),
            lambda: client.execute_command("XGROUP", "DESTROY", stream, roles.GROUP),
            lambda: client.execute_command("XGROUP", "SETID", stream, roles.GROUP, "$"),
            lambda: client.get("somebody-elses"),
            lambda: client.config_get("*"),
            lambda: client.execute_command("ACL", "LIST"),
            lambda: client.flushall(),
        ]

        for call in forbidden:
            with pytest.raises((QueueError, redis.exceptions.NoPermissionError), match=REFUSED):
                call()


@pytest.mark.parametrize("role", PARTS)
def test_a_line_with_one_command_less_is_not_enough(role):
    with EmbeddedServer() as server, open_client(server.url) as everything:
        commands = [rule for rule in LINES[role].split() if rule.startswith("+")]
        assert works(server, everything, role, LINES[role])

        rules = LINES[role].split()
        needless = [
            one
            for one in commands
            if works(server, everything, role, " ".join(rule for rule in rules if rule != one))
        ]

    assert needless == []
