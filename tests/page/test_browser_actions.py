"""Every action in a headless Chromium: its question, the click, and the state of the server behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest

from conquiet import EmbeddedServer
from conquiet.mq import DeadLetters, MqAdmin, Producer, Topics
from conquiet.operations import AuditLog
from conquiet.page.application import ACTIONS
from conquiet.queue import open_client
from conquiet.tasks import TaskApp, Worker, WorkerConfig
from tests.eventually import eventually
from tests.page.browser import PHONE, WIDE, Browser, chromium
from tests.page.served import APP, Served, serving
from tests.page.shop import Shop, app_of, open_shop

pytestmark = pytest.mark.xdist_group("chromium")


@dataclass(frozen=True)
class Counter:
    """A shop at work, and a browser before it."""

    browser: Browser
    served: Served
    shop: Shop
    app: TaskApp
    #: One that runs, named spare-1.
    worker: Worker

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters(Topics(self.shop.client).open(self.shop.topic))

    def queue(self) -> Any:
        return self.app.control.queue(self.shop.queue)

    def dead_task(self) -> str:
        return str(self.app.control.tasks(self.shop.queue, "dead_lettered").tasks[0].letter_id)


@dataclass(frozen=True)
class Case:
    """What is asked for, and what is so on the server before and afterwards."""

    name: str
    parameters: dict[str, str]
    state: Callable[[], object]
    before: object
    after: object


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def counter(browser) -> Iterator[Counter]:
    config = WorkerConfig(queues=("spare",), pool="thread", concurrency=1, name="spare-1")
    with EmbeddedServer() as server, open_client(server.url) as client:
        shop = open_shop(client, server.url)
        with serving(server.url, "--app", APP) as served, app_of(shop) as app, Worker(app, config) as worker:
            eventually(lambda: [one.name for one in app.control.workers()] == ["spare-1"])
            browser.resize(WIDE)
            browser.prefer("light")
            browser.open(served.link)
            browser.complaints()
            yield Counter(browser, served, shop, app, worker)


def replay(counter: Counter) -> Case:
    return Case("replay", {"name": counter.shop.topic}, counter.letters.count, 3, 0)


def purge(counter: Counter) -> Case:
    letter = counter.letters.list().letters[0].id
    return Case("purge", {"name": counter.shop.topic, "id": letter}, counter.letters.count, 3, 2)


def prune(counter: Counter) -> Case:
    shop = counter.shop
    shop.client.execute_command("XGROUP", "CREATECONSUMER", shop.stream, "analytics", "gone")
    return Case(
        "prune",
        {"name": shop.stream, "group": "analytics"},
        lambda: (
            "gone" in {one["name"].decode() for one in shop.client.xinfo_consumers(shop.stream, "analytics")}
        ),
        True,
        False,
    )


def trim(counter: Counter) -> Case:
    admin, topic = MqAdmin(counter.shop.client), counter.shop.topic
    return Case("trim", {"name": topic, "keep": "1"}, lambda: admin.topic(topic).length, 30, 3)


def cancel_delayed(counter: Counter) -> Case:
    client, topic = counter.shop.client, counter.shop.topic
    name = Producer(client).send(topic, {"later": True}, delay_ms=3_600_000)
    return Case(
        "cancel-delayed", {"name": topic, "id": name}, lambda: MqAdmin(client).topic(topic).delayed, 1, 0
    )


def retry_tasks(counter: Counter) -> Case:
    asked = {"queue": counter.shop.queue, "id": counter.dead_task()}
    return Case("retry-tasks", asked, lambda: counter.queue().dead_letters, 1, 0)


def purge_tasks(counter: Counter) -> Case:
    return Case("purge-tasks", {"queue": counter.shop.queue}, lambda: counter.queue().dead_letters, 1, 0)


def revoke(counter: Counter) -> Case:
    queue, app = counter.shop.queue, counter.app
    task_id = str(app.control.tasks(queue, "queued").tasks[0].id)

    def state() -> str:
        status = app.results.status(task_id, queue)
        return "" if status is None else status.state.value

    return Case("revoke", {"queue": queue, "id": task_id}, state, "queued", "revoked")


def pause(counter: Counter) -> Case:
    return Case(
        "pause", {"queue": counter.shop.queue, "paused": "1"}, lambda: counter.queue().is_paused, False, True
    )


def stop_workers(counter: Counter) -> Case:
    return Case("stop-workers", {"worker": "spare-1"}, lambda: counter.worker.is_running, True, False)


def enable_schedule(counter: Counter) -> Case:
    return Case(
        "enable-schedule",
        {"name": "nightly", "enabled": "0"},
        lambda: counter.app.schedules.get("nightly").stored.is_enabled,
        True,
        False,
    )


def run_schedule(counter: Counter) -> Case:
    before = counter.queue().queued
    return Case("run-schedule", {"name": "nightly"}, lambda: counter.queue().queued, before, before + 1)


CASES = (
    replay,
    purge,
    prune,
    trim,
    cancel_delayed,
    retry_tasks,
    purge_tasks,
    revoke,
    pause,
    stop_workers,
    enable_schedule,
    run_schedule,
)


def test_every_action_is_among_them():
    assert {case.__name__.replace("_", "-") for case in CASES} == {action.name for action in ACTIONS}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_an_action_is_asked_for_confirmed_and_done(make, counter):
    case, browser = make(counter), counter.browser
    address = f"{counter.served.url}/act/{case.name}?{urlencode(case.parameters)}"
    for scheme, size in (("light", PHONE), ("dark", PHONE), ("dark", WIDE), ("light", WIDE)):
        browser.prefer(scheme)
        browser.resize(size)
        browser.open(address)
        assert browser.barriers() == [], (scheme, size)
    assert "Dry run" in browser.text
    assert case.state() == case.before

    browser.find("form.confirm button").click()
    eventually(lambda: browser.count("#job.done") == 1)

    assert eventually(lambda: case.state() == case.after)
    assert browser.barriers() == []
    assert browser.complaints() == []
    last, first = AuditLog(counter.shop.client).last(2)
    assert (first.action, first.outcome, last.outcome) == (case.name, "begun", "done")


def test_an_action_that_runs_is_stopped_with_its_button(counter):
    browser, asked = counter.browser, {"name": counter.shop.topic, "per_second": "0.01"}
    browser.open(f"{counter.served.url}/act/replay?{urlencode(asked)}")
    browser.find("form.confirm button").click()
    eventually(lambda: browser.count("#job.running") == 1 and counter.letters.count() == 2)
    assert browser.barriers() == []

    browser.driver.execute_script("document.querySelector('#job button').click()")
    eventually(lambda: browser.count("#job.stopped") == 1)

    assert counter.letters.count() == 2
    assert "Replayed 1 dead letters" in browser.text
    assert browser.complaints() == []


def test_the_login_and_what_is_not_there_have_no_barriers(counter):
    browser = counter.browser
    for path, text in (
        ("/login", "Log in"),
        ("/topic?name=nowhere", "did not work"),
        ("/nowhere", "no such page"),
    ):
        for scheme, size in (("light", WIDE), ("dark", WIDE), ("dark", PHONE), ("light", PHONE)):
            browser.prefer(scheme)
            browser.resize(size)
            browser.open(counter.served.url + path)
            assert text in browser.text
            assert browser.barriers() == [], (path, scheme, size)
    # The browser reports each answer that is no page as what it is, and nothing else.
    assert [text for text in browser.complaints() if "status of 404" not in text] == []
