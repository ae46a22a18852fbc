"""A shop with real traffic: topics, streams, dead letters, tasks, schedules; some of it hostile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, StreamWriter
from conquiet.mq import ConsumerConfig, DeadLetter, Producer, RetryPolicy, Topics, drain_partition
from conquiet.tasks import TaskApp, chain, chord, group
from conquiet.tasks.beat import Beat, BeatConfig
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.worker import Worker, WorkerConfig
from tests.eventually import eventually
from tests.page.shop_tasks import SCRIPT, NoStockError, declare

#: Each of them does something if it is not escaped.
IMAGE = "<img src=x onerror=\"document.title='owned'\">"
QUOTES = "\"'><svg onload=document.title='owned'>"
TEMPLATE = "{{ 7 * 7 }}{% raw %}"
BIDI = "safe\u202egpj.exe"
HOSTILE = (SCRIPT, IMAGE, QUOTES, TEMPLATE, BIDI)


@dataclass
class Shop:
    """What is where."""

    client: Any
    url: str
    topic: str = "orders"
    group: str = "billing"
    stream: str = "clicks"
    hostile: str = "hostile"
    queue: str = "mail"
    hostile_queue: str = f"queue {SCRIPT}"
    #: A member of a group, on which another task follows.
    canvas_task: str = ""


def open_shop(client: Any, url: str) -> Shop:
    """Fill a server of its own: 30 orders, of which 3 are poison, 10 clicks, a queue of tasks, schedules."""
    shop = Shop(client, url)
    send_orders(shop, 30)
    drain_orders(shop, is_fixed=False)
    _click(shop)
    _send_hostile(shop)
    _fill_queue(shop)
    _fill_hostile_queue(shop)
    return shop


def send_orders(shop: Shop, count: int) -> list[str]:
    """Every tenth order is poison."""
    topic = Topics(shop.client).create(shop.topic, partitions=3)
    producer = Producer(shop.client)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    return [
        producer.send(
            topic, {"order_id": n, "cents": 100 * n, "card": "4111-1111"}, key=f"c{n % 7}", headers=headers
        )
        for n in range(1, count + 1)
    ]


def drain_orders(shop: Shop, *, is_fixed: bool) -> int:
    """Handle what waits; as long as the bug is not fixed, every tenth order becomes a dead letter."""

    def bill(message: Any) -> Any:
        if message.payload["order_id"] % 10 == 0 and not is_fixed:
            raise NoStockError(f"no stock for order {message.payload['order_id']} {SCRIPT}")

    topic = Topics(shop.client).open(shop.topic)
    limits, config = DrainLimits(idle_ms=20), ConsumerConfig(retry=RetryPolicy(max_attempts=1))
    return sum(
        drain_partition(topic, partition, shop.group, bill, limits=limits, config=config).handled
        for partition in topic.partitions
    )


def _click(shop: Shop) -> None:
    """A plain stream with a consumer that has read and not acked."""
    config = QueueConfig(shop.stream, "analytics", "reader-1", block_ms=20)
    with RedisStreamsQueue(shop.client, config) as queue:
        queue.enqueue_many({"page": f"/{n}"} for n in range(10))
        queue.read(20, count=4)
    shop.client.xadd(shop.stream, {"other": "not json", "field": SCRIPT})


def _send_hostile(shop: Shop) -> None:
    topic = Topics(shop.client).create(shop.hostile)
    producer = Producer(shop.client)
    for text in HOSTILE:
        producer.send(topic, {text: text, "nested": [{"x": text}]}, key=text, headers={"note": text})

    def give_up(message: Any) -> Any:
        return DeadLetter(f"given up {message.payload['nested'][0]['x']}")

    drain_partition(topic, 0, "g", give_up, limits=DrainLimits(idle_ms=20, max_messages=3))
    StreamWriter(shop.client, f"stream {SCRIPT}").enqueue({"n": 1})
    stream = topic.keys.stream(0)
    shop.client.xgroup_create(stream, f"group {SCRIPT}", "0")
    shop.client.xreadgroup(f"group {SCRIPT}", f"consumer {QUOTES}", {stream: ">"}, count=2)


def _fill_hostile_queue(shop: Shop) -> None:
    """A queue and a task with names that another program gave them."""
    keys = QueueKeys("tasks", shop.hostile_queue)
    shop.client.sadd("tasks:queues", shop.hostile_queue)
    letter: dict[str, Any] = {
        "originalMessageId": "1000-1",
        "errorType": SCRIPT,
        "errorMessage": IMAGE,
        "traceback": QUOTES,
    }
    letter["envelope"] = {"name": SCRIPT, "args": {IMAGE: QUOTES}}
    shop.client.xadd(keys.dead_letters, {"data": json.dumps(letter)})


def app_of(shop: Shop) -> TaskApp:
    """The tasks of the shop."""
    return declare(TaskApp(shop.url))


def _fill_queue(shop: Shop) -> None:
    with app_of(shop) as app:
        send, add, total = app.tasks["shop.send"], app.tasks["shop.add"], app.tasks["shop.total"]
        send.enqueue(to="ann")
        send.enqueue(to="nobody")
        with Worker(app, WorkerConfig(queues=(shop.queue,), pool="thread", concurrency=1)):
            eventually(lambda: app.control.queue(shop.queue).dead_letters)
        known = {one.id for one in app.control.tasks(shop.queue, "queued").tasks}
        chord([add.call(one=n, two=n) for n in range(3)], total.partial()).enqueue()
        members = [one.id for one in app.control.tasks(shop.queue, "queued").tasks if one.id not in known]
        shop.canvas_task = str(members[0])
        chain(add.call(one=1, two=2), group([add.call(one=5, two=6)])).enqueue()
        app.schedule("nightly", send, {"to": "ann"}, cron="0 2 * * *")
        for schedule in app.schedules.declared.values():
            app.schedules.apply(schedule)
        _run_schedule(app)


def _run_schedule(app: TaskApp) -> None:
    """One that has run."""
    app.schedule("often", app.tasks["shop.send"], {"to": "bob"}, every=timedelta(seconds=1))
    app.schedules.apply(app.schedules.declared["often"])
    beat = Beat(app, BeatConfig(name="shop"))
    eventually(lambda: (beat.tick(), app.schedules.history("often", 1))[1])
    app.schedules.enable("often", is_enabled=False)
