"""The page over a Redis Cluster: every view, and an action on dead letters of several partitions."""

from __future__ import annotations

import html

from conquiet import EmbeddedServer
from conquiet.mq import DeadLetters, Topics
from conquiet.page import PageSettings
from conquiet.queue import open_client
from tests.page.forms import fields_of
from tests.page.served import serving_here
from tests.page.shop import app_of, open_shop
from tests.page.test_views import addresses


def test_every_view_and_a_replay_on_a_cluster():
    with EmbeddedServer(cluster=3) as server, open_client(server.url) as client:
        shop = open_shop(client, server.url)
        settings = PageSettings(secret="s" * 32, streams=(shop.stream,))
        with serving_here(server.url, settings, lambda: app_of(shop)) as page, page.client() as operator:
            answers = {address: operator.get(address) for address in addresses(shop)}
            question = operator.get("/act/replay", params={"name": shop.topic}).text
            said = html.unescape(operator.post("/act/replay", data=fields_of(question)).text)
        left = DeadLetters(Topics(client).open(shop.topic)).count()

    failed = {address: answer.text[-500:] for address, answer in answers.items() if answer.status_code != 200}
    assert failed == {}
    assert all(f">{name}</a>" in answers["/"].text for name in (shop.topic, shop.stream, shop.queue))
    assert "Replayed 3 dead letters." in said
    assert left == 0
