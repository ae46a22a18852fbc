"""What the views show: the figures of the library, hostile content as text, masked fields not at all."""

from __future__ import annotations

import html
import re

import pytest
import redis

from conquiet.mq import MessageBrowser, MqAdmin
from conquiet.page.application import VIEWS
from conquiet.page.charts import Series, chart_of
from conquiet.page.masks import FieldMask, visible
from conquiet.queue import open_client
from tests.eventually import eventually
from tests.page.served import serving
from tests.page.shop import HOSTILE, SCRIPT, app_of, send_orders


def addresses(shop) -> list[str]:
    """Each view with something to show."""
    browser = MessageBrowser(shop.client)
    clean, bad = (browser.page(name).messages[0].position for name in (shop.topic, shop.stream))
    with app_of(shop) as app:
        (letter,) = app.control.tasks(shop.queue, "dead_lettered").tasks
        queued = app.control.tasks(shop.queue, "queued").tasks[0]
    return [
        "/",
        "/?q=ord&kind=topic&sort=backlog",
        "/?sort=name&page=2",
        *(f"/{view}?name={shop.topic}" for view in ("topic", "pending", "delayed", "messages", "tail")),
        *(f"/{view}?name={shop.topic}" for view in ("letters", "consumers")),
        *(
            f"/{view}?name={shop.hostile}"
            for view in ("topic", "pending", "messages", "letters", "consumers")
        ),
        *(f"/{view}?name={shop.stream}" for view in ("topic", "pending", "messages", "consumers")),
        f"/message?name={shop.topic}&id={clean}",
        f"/message?name={shop.stream}&id={bad}",
        f"/pending?name={shop.stream}&sort=idle&min_idle=1ms&consumer=reader-1",
        *(
            f"/queue?name={shop.queue}&where={where}"
            for where in ("queued", "in_flight", "waiting", "delayed")
        ),
        *(f"/queue?name={shop.queue}&where={where}" for where in ("dead_lettered", "ended")),
        f"/task?queue={shop.queue}&id={letter.id}",
        f"/task?queue={shop.queue}&id={queued.id}",
        "/workers",
        "/schedules",
        "/schedule?name=nightly",
        "/audit",
    ]


def test_every_view_has_an_address_here(shop):
    seen = {address.partition("?")[0] for address in addresses(shop)}

    # A letter's own view is found through the list, see below.
    assert {view.path for view in VIEWS} - seen == {"/letter"}


def test_every_view_answers_and_hostile_content_is_text(operator, shop):
    for address in addresses(shop):
        answer = operator.get(address)
        assert answer.status_code == 200, (address, answer.text[-800:])
        assert SCRIPT not in answer.text
        assert "<img src=x" not in answer.text
        assert "<svg onload" not in answer.text
        assert not re.search(r"<script(?! src=\"/static/)", answer.text)
        assert not re.search(r"\s(on\w+|style)=[\"']", re.sub(r"<(pre|code)[^>]*>.*?</\1>", "", answer.text))
        assert "\u202e" not in answer.text


def test_hostile_payloads_are_shown_as_they_are(operator, shop):
    text = html.unescape(operator.get("/messages", params={"name": shop.hostile}).text)

    for payload in HOSTILE:
        shown = payload.replace("\u202e", "\\u202e")
        assert shown in text or shown.replace('"', '\\"') in text


def test_a_letter_has_its_error_its_payload_and_its_traceback(operator, shop):
    listed = operator.get("/letters", params={"name": shop.topic}).text
    address = html.unescape(re.findall(r'href="(/letter\?[^"]+)"', listed)[0])
    letter = html.unescape(operator.get(address).text)

    assert "3 dead letters, by error" in listed
    assert "NoStockError" in letter
    assert "in bill" in letter
    assert '"order_id"' in letter


def test_the_numbers_are_those_of_the_library(operator, shop):
    (group,) = MqAdmin(shop.client).groups(shop.stream)
    page = operator.get("/topic", params={"name": shop.stream}).text

    assert re.search(rf"<dt>Lag</dt><dd>{group.lag}</dd>", page)
    assert re.search(rf"<dt>Pending</dt><dd><a [^>]*>{group.pending}</a>", page)
    assert (group.lag, group.pending) == (7, 4)


def test_a_plain_stream_is_found_without_being_named(operator, shop):
    assert eventually(lambda: f'name={shop.stream}"' in operator.get("/").text)


def test_search_by_key_time_text_and_id(operator, shop):
    def found(**parameters: str) -> list[str]:
        page = operator.get("/messages", params={"name": shop.topic, **parameters}).text
        return re.findall(r'href="/message\?name=orders&amp;id=([\d-]+)', page)

    everything = found(limit="100")
    assert len(everything) == 30
    assert len(found(key="c1")) == 5
    assert len(found(text='"cents":1500')) == 1
    assert found(until="1970-01-01T00:01") == []
    assert found(since=everything[0], limit="5")
    assert len(found(oldest="1", limit="7")) == 7


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/topic", 400),
        ("/topic?name=nowhere", 404),
        ("/message?name=orders&id=1-1", 404),
        ("/message?name=orders&id=x", 400),
        ("/messages?name=orders&since=yesterday", 400),
        ("/messages?name=orders&limit=100000", 400),
        ("/messages?name=orders&cursor=x", 400),
        ("/pending?name=orders&group=nobody", 404),
        ("/pending?name=orders&sort=sideways", 400),
        ("/letter?name=orders&id=1-1", 404),
        ("/schedule?name=nowhere", 404),
        ("/queue?name=mail&where=somewhere", 400),
        ("/?page=0", 400),
        (f"/?q={'x' * 3000}", 400),
        ("/etc/passwd", 404),
        ("/static/../desk.py", 404),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(operator, address, status):
    answer = operator.get(address)

    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_masked_fields_are_nowhere(shop):
    with serving(shop.url, CONQUIET_PAGE_MASK="card, TO") as page, page.client() as operator:
        texts = [operator.get(address).text for address in addresses(shop) if "hostile" not in address]
        search = operator.get("/messages", params={"name": shop.topic, "text": "4111"})

    assert not any("4111-1111" in text for text in texts)
    assert any("***" in text for text in texts)
    # Else it would tell what they contain.
    assert search.status_code == 400


def test_a_password_in_an_error_is_masked():
    assert "s3cret" not in visible("cannot connect to redis://user:s3cret@host:6379/0")
    assert visible("a\u202eb\x00c\u200b") == "a\\u202eb\\u0000c\\u200b"
    assert FieldMask(frozenset({"Card"})).hide({"CARD": 1, "a": [{"card": 2}]}) == {
        "CARD": "***",
        "a": [{"card": "***"}],
    }


def test_a_trace_leads_to_where_the_settings_say(shop):
    settings = {"CONQUIET_PAGE_TRACE_URL": "https://traces.example/{trace_id}"}
    message = MessageBrowser(shop.client).page(shop.topic).messages[0].position
    with serving(shop.url, **settings) as page, page.client() as operator:
        text = operator.get("/message", params={"name": shop.topic, "id": str(message)}).text

    assert 'href="https://traces.example/0af7651916cd43dd8448eb211c80319c"' in text


def test_a_view_of_a_server_that_is_gone_says_so(tmp_path):
    from conquiet import EmbeddedServer

    with EmbeddedServer() as server, serving(server.url) as page, page.client() as operator:
        assert operator.get("/").status_code == 200
        server.stop()
        eventually(lambda: operator.get("/").status_code == 503)
        answer = operator.get("/")

    assert "This did not work" in answer.text


def test_new_messages_are_sent_as_they_are_added(page, shop):
    with page.client() as operator, operator.stream("GET", "/tail/events?name=orders") as events:
        lines = events.iter_lines()
        next(line for line in lines if "event: message" in line)
        send_orders(shop, 1)
        newest = MessageBrowser(shop.client).page(shop.topic).messages[0]
        assert any(newest.id in line for line in lines)


def test_a_view_is_sent_again_when_it_has_changed(page, shop):
    client = open_client(shop.url)
    with (
        page.client() as operator,
        operator.stream("GET", "/live", params={"view": "/topic?name=live"}) as none,
    ):
        assert none.status_code == 200
    client.xadd("live", {"data": "{}"})
    with (
        page.client() as operator,
        operator.stream("GET", "/live", params={"view": "/topic?name=live"}) as events,
    ):
        views = (line for line in events.iter_lines() if line.startswith("data: "))
        assert ">1</a>" in next(views)
        client.xadd("live", {"data": "{}"})
        assert any(">2</a>" in view for view in views)


def test_charts_have_gaps_where_nothing_is_known():
    points = ((0, 1.0), (10, None), (20, 3.0), (30, 4.0), (1000, 8.0))
    chart = chart_of([Series("lag", points)], title="t")

    assert chart is not None
    assert chart.lines[0].path.count("M") == 3
    assert chart.y_ticks[-1][1] == "8"
    assert chart_of([Series("lag", ((5, 1.0),))], title="one moment") is None
    assert chart_of([], title="none") is None


#: What a page needs to show everything: it reads, and runs scripts that read.
VIEWER_RULES = (
    "~* &* -@all +@read +@connection +info +time +config|get +command|info +evalsha +eval +scan "
    "+xinfo|groups +xinfo|consumers +xinfo|stream"
)


def test_a_user_who_may_only_read_is_enough_for_every_view(shop):
    shop.client.execute_command("ACL", "SETUSER", "looker", "on", ">looker-password", *VIEWER_RULES.split())
    shop.client.execute_command("ACL", "LOG", "RESET")
    url = shop.url.replace("redis://", "redis://looker:looker-password@")
    writes = _writes(shop.client)

    with serving(url, "--read-only") as page, page.client() as operator:
        for address in addresses(shop):
            answer = operator.get(address)
            assert answer.status_code == 200, (address, answer.text[-600:])

    assert _writes(shop.client) == writes
    refused = {entry["object"] for entry in shop.client.acl_log()}
    # The samples of charts, and the sweep of workers that ended.
    assert refused <= {"xadd", "pexpire", "zremrangebyscore"}


def _writes(client: redis.Redis) -> int:
    """Changes of the server's data since its start."""
    return client.info("persistence")["rdb_changes_since_last_save"]
