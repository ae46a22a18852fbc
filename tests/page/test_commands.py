"""The commands that the page shows are those of the command line: each is understood as it stands there."""

from __future__ import annotations

import html
import re
import shlex
from typing import Any
from urllib.parse import urlencode

import pytest
import typer
import typer.testing

from conquiet import EmbeddedServer
from conquiet.cli.main import app as cli
from conquiet.mq import DeadLetters, Topics
from conquiet.page import PageSettings
from conquiet.queue import open_client
from tests.page.served import APP, serving_here
from tests.page.shop import app_of, open_shop
from tests.page.test_views import addresses


def commands_in(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'data-copy="([^"]*)"', page)]


def parsed(text: str) -> dict[str, Any]:
    """What the command line's own parser makes of it, without running it."""
    program, *words = shlex.split(text)
    assert program == "conquiet"
    command: Any = typer.main.get_command(cli)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    return dict(command.make_context(text, words).params)


@pytest.fixture(scope="module")
def operator(shop):
    """Of a page that was given an app."""
    settings = PageSettings(secret="s" * 32, app=APP, takes_samples=False)
    with serving_here(shop.url, settings, lambda: app_of(shop)) as served, served.client() as client:
        yield client


def questions(shop) -> list[str]:
    letters = [letter.id for letter in DeadLetters(Topics(shop.client).open(shop.topic)).list().letters]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("replay", {"name": shop.topic, "id": letters}),
        ("replay", {"name": shop.topic, "error_type": "NoStockError", "per_second": "2"}),
        ("purge", {"name": shop.topic, "id": letters}),
        ("purge", {"name": shop.topic}),
        ("prune", {"name": shop.stream, "group": "analytics"}),
        ("trim", {"name": shop.topic, "keep": "7"}),
        ("cancel-delayed", {"name": shop.topic, "id": [f"1-{number}" for number in range(30)]}),
        ("retry-tasks", {"queue": shop.queue, "id": [f"1-{number}" for number in range(30)]}),
        ("retry-tasks", {"queue": shop.queue, "per_second": "3"}),
        ("purge-tasks", {"queue": shop.queue}),
        ("purge-tasks", {"queue": shop.queue, "id": "1-1"}),
        ("revoke", {"queue": shop.queue, "id": "1-1", "terminate": "1"}),
        ("pause", {"queue": shop.queue, "paused": "1"}),
        ("pause", {"queue": shop.queue, "paused": "0"}),
        ("stop-workers", {"worker": "w"}),
        ("enable-schedule", {"name": "nightly", "enabled": "0"}),
        ("run-schedule", {"name": "nightly"}),
    ]
    return [f"/act/{name}?{urlencode(given, doseq=True)}" for name, given in asked]


def test_each_command_that_is_shown_is_understood(operator, shop):
    checked = set()
    for address in (*addresses(shop), *questions(shop)):
        answer = operator.get(address)
        assert answer.status_code == 200, address
        for text in commands_in(answer.text):
            parsed(text)
            checked.add(" ".join(shlex.split(text)[1:3]))

    assert checked >= {"dlq replay", "dlq purge", "tasks retry", "tasks purge", "tasks show", "schedule show"}


def test_each_command_on_tasks_and_schedules_names_the_app_of_the_page(operator, shop):
    of_tasks = [
        (address, text)
        for address in (*addresses(shop), *questions(shop))
        for text in commands_in(operator.get(address).text)
        if text.split()[1] in ("tasks", "workers", "schedule", "queues")
    ]

    assert {address: text for address, text in of_tasks if parsed(text)["app"] != APP} == {}
    assert len(of_tasks) > 15


def test_the_command_for_all_leaves_what_comes_after_the_question(operator, shop):
    for address in questions(shop):
        page = operator.get(address).text
        before = re.findall(r'name="before" value="(\d+)"', page)
        if before:
            assert parsed(commands_in(page)[-1])["until"] == int(before[0]), address


def test_chosen_ones_are_all_in_the_command(operator, shop):
    asked = next(address for address in questions(shop) if "cancel-delayed" in address)
    (text,) = commands_in(operator.get(asked).text)

    assert [word for word in shlex.split(text) if word.startswith("1-")] == [f"1-{n}" for n in range(30)]


@pytest.mark.parametrize("words", ["dlq purge orders", "tasks purge --queue mail"])
def test_a_purge_of_all_until_a_time_leaves_what_is_newer(words, monkeypatch):
    with EmbeddedServer() as server, open_client(server.url) as client:
        shop = open_shop(client, server.url)
        monkeypatch.setenv("CONQUIET_REDIS_URL", server.url)
        letters = DeadLetters(Topics(client).open(shop.topic))
        with app_of(shop) as app:

            def counts() -> tuple[int, int]:
                return letters.count(), app.control.queue(shop.queue).dead_letters

            before = counts()
            assert _run(f"{words} --all --until 1000 --yes") == 0
            assert counts() == before
            assert _run(f"{words} --all --yes") == 0
            assert counts() != before
        assert _run(f"{words} --older-than 1d --until 1000 --yes") == 2


def _run(words: str) -> int:
    return typer.testing.CliRunner().invoke(cli, words.split()).exit_code
