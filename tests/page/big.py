"""A server with much on it, and what each view costs there: `python -m tests.page.big` prints it.

With 10,000 topics, 1,000,000 pending entries and 100,000 dead letters: the time to the first byte, the
commands that the server ran for the view, and which of them took longest.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from conquiet import EmbeddedServer
from conquiet.mq import ConsumerConfig, Producer, RetryPolicy, Topics, drain_partition
from conquiet.queue import open_client
from conquiet.tasks.keys import QueueKeys
from tests.page.served import Served, serving

TOPIC, GROUP, PENDING, QUEUE = "big", "billing", "pending", "mail"
#: Commands that are not the view's: of the connection, of the sampler's rounds, of looking.
_NOT_COUNTED = {"info", "hello", "auth", "client|setinfo", "config|resetstat", "scan", "config|get"}

#: Only the views run commands then.
QUIET = ("--no-find-streams", "--no-samples", PENDING)

VIEWS = {
    "overview": "/",
    "overview, by backlog": "/?sort=backlog",
    "overview, page 300": "/?sort=name&page=300",
    "topic": f"/topic?name={TOPIC}",
    "stream": f"/topic?name={PENDING}",
    "pending": f"/pending?name={PENDING}",
    "pending, longest idle": f"/pending?name={PENDING}&sort=idle",
    "pending, idle for 1 h": f"/pending?name={PENDING}&min_idle=1h",
    "messages": f"/messages?name={PENDING}",
    "messages, search": f"/messages?name={PENDING}&text=nowhere",
    "dead letters": f"/letters?name={TOPIC}",
    "dead letters, search": f"/letters?name={TOPIC}&error_type=Nowhere",
    "replay all, dry run": f"/act/replay?name={TOPIC}",
    "purge all, dry run": f"/act/purge?name={TOPIC}",
    "consumers": f"/consumers?name={PENDING}",
    "tail": f"/tail?name={PENDING}",
    "delayed": f"/delayed?name={TOPIC}",
    "queue": f"/queue?name={QUEUE}",
    "queue, dead letters": f"/queue?name={QUEUE}&where=dead_lettered",
    "task without a letter": f"/task?queue={QUEUE}&id=1000-1",
    "retry all, dry run": f"/act/retry-tasks?queue={QUEUE}",
    "workers": "/workers",
    "schedules": "/schedules",
    "audit": "/audit",
}

#: What is sent to open pages.
EVENTS = (
    f"/live?{urlencode({'view': VIEWS['overview']})}",
    f"/live?{urlencode({'view': VIEWS['stream']})}",
    f"/live?{urlencode({'view': VIEWS['queue']})}",
    f"/tail/events?name={PENDING}",
)


def fill(client: Any, *, topics: int, pending: int, letters: int) -> None:
    """As the library writes it; in pipelines, since it is much."""
    registry = Topics(client)
    for number in range(topics):
        registry.create(f"topic-{number:05}")
    _fill_pending(client, pending)
    _fill_letters(client, letters)
    _fill_task_letters(client, letters)


def _fill_pending(client: Any, count: int) -> None:
    client.xgroup_create(PENDING, GROUP, "0", mkstream=True)
    for start in range(0, count, 10_000):
        pipeline = client.pipeline(transaction=False)
        size = min(10_000, count - start)
        for number in range(start, start + size):
            pipeline.execute_command("XADD", PENDING, "*", "data", f'{{"order_id":{number}}}')
        command = (
            "XREADGROUP",
            "GROUP",
            GROUP,
            f"worker-{start // 10_000 % 50}",
            "COUNT",
            size,
            "STREAMS",
            PENDING,
        )
        pipeline.execute_command(*command, ">")
        pipeline.execute()


def _fill_letters(client: Any, count: int) -> None:
    """Real ones, many times over."""
    topic = Topics(client).create(TOPIC)
    Producer(client).send_many(topic, [{"order_id": n} for n in range(10)])

    def fail(message: Any) -> None:
        raise LookupError(f"no stock for order {message.payload['order_id']}")

    drain_partition(topic, 0, GROUP, fail, config=ConsumerConfig(retry=RetryPolicy(max_attempts=1)))
    key = topic.keys.dead_letters(0)
    real = [next(iter(fields.values())) for _, fields in client.xrange(key)]
    for start in range(0, count - len(real), 5_000):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + 5_000, count - len(real))):
            pipeline.execute_command("XADD", key, "*", "data", real[number % len(real)])
        pipeline.execute()


def _fill_task_letters(client: Any, count: int) -> None:
    keys = QueueKeys("tasks", QUEUE)
    client.sadd("tasks:queues", QUEUE)
    for start in range(0, count, 5_000):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + 5_000, count)):
            letter: dict[str, Any] = {
                "originalMessageId": f"1000-{number + 2}",
                "errorType": "shop.NoStock",
                "errorMessage": "none",
            }
            letter |= {"envelope": {"name": "shop.send", "args": {"to": "ann"}}, "attempts": 3}
            pipeline.xadd(keys.dead_letters, {"data": json.dumps(letter)})
        pipeline.execute()


def commands_of(client: Any) -> dict[str, tuple[int, int]]:
    """How often each command was run since the statistics were reset, and its µs on average."""
    stats: Mapping[str, Mapping[str, Any]] = client.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): (row["calls"], round(row["usec_per_call"]))
        for name, row in stats.items()
        if name.removeprefix("cmdstat_") not in _NOT_COUNTED
    }


@dataclass(frozen=True)
class Cost:
    """What one view costs."""

    #: To the first byte.
    took_ms: int
    #: Commands that the server ran for it.
    count: int
    #: The slowest kind of command.
    slowest: str
    #: The names of all of them, also of those that scripts ran.
    names: frozenset[str]


def measure(client: Any, page: Served, names: Iterable[str] = VIEWS) -> dict[str, Cost]:
    """What each view costs when it is opened once more."""
    found = {}
    with page.client() as http:
        for name in names:
            http.get(VIEWS[name])
            client.config_resetstat()
            began = time.perf_counter()
            with http.stream("GET", VIEWS[name]) as response:
                next(response.iter_raw(1))
                took_ms = round((time.perf_counter() - began) * 1000)
                assert response.status_code == 200, (name, response.status_code)
            commands = commands_of(client)
            slowest = max(commands.items(), key=lambda item: item[1][1], default=("none", (0, 0)))
            count = sum(calls for calls, _ in commands.values())
            found[name] = Cost(took_ms, count, f"{slowest[0]} {slowest[1][1]} µs", frozenset(commands))
    return found


def commands_of_events(client: Any, page: Served) -> dict[str, frozenset[str]]:
    """The names of the commands behind what is sent to an open page."""
    found = {}
    with page.client() as http:
        for address in EVENTS:
            client.config_resetstat()
            with http.stream("GET", address) as response:
                lines = response.iter_lines()
                next(line for line in lines if line.startswith("event:"))
                if address.startswith("/tail"):
                    # It has waited for what comes next.
                    next(line for line in lines if line.startswith(": alive"))
            found[address] = frozenset(commands_of(client))
    return found


def main() -> None:
    logging.disable(logging.CRITICAL)
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with EmbeddedServer() as server, open_client(server.url) as client:
        fill(
            client,
            topics=round(10_000 * scale),
            pending=round(1_000_000 * scale),
            letters=round(100_000 * scale),
        )
        with serving(server.url, *QUIET) as page:
            for name, cost in measure(client, page).items():
                took = f"{cost.took_ms:>6} ms {cost.count:>7} commands"
                print(f"{name:<26}{took}   slowest: {cost.slowest}", flush=True)


if __name__ == "__main__":
    main()
