"""What the views show: the figures of the library, hostile content as text, masked fields not at all."""

from __future__ import annotations

import html
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from conquiet import EmbeddedServer
from conquiet.mq import DeadLetters, MessageBrowser, MqAdmin, Topics
from conquiet.page.application import VIEWS
from conquiet.page.catalogue import Subject
from conquiet.page.charts import Series, chart_of
from conquiet.page.masks import FieldMask, visible
from conquiet.page.rows import Rows
from conquiet.queue import open_client
from conquiet.tasks.control.workers import WorkerDescription
from conquiet.tasks.keys import workers_key
from tests.eventually import eventually
from tests.page.served import serving
from tests.page.shop import HOSTILE, app_of, open_shop, send_orders
from tests.page.shop_tasks import SCRIPT


def addresses(shop) -> list[str]:
    """Each view with something to show."""
    browser = MessageBrowser(shop.client)
    clean, bad = (browser.page(name).messages[0].position for name in (shop.topic, shop.stream))
    letters = [
        f"/letter?name={name}&id={DeadLetters(Topics(shop.client).open(name)).list(limit=1).letters[0].id}"
        for name in (shop.topic, shop.hostile)
    ]
    with app_of(shop) as app:
        (letter,) = app.control.tasks(shop.queue, "dead_lettered").tasks
        queued = app.control.tasks(shop.queue, "queued").tasks[0]
        ended = next(one for one in app.control.tasks(shop.queue, "ended").tasks if one.state == "succeeded")
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
        f"/task?queue={shop.queue}&id={ended.id}",
        f"/task?queue={shop.queue}&id={shop.canvas_task}",
        *letters,
        f"/queue?{urlencode({'name': shop.hostile_queue, 'where': 'dead_lettered'})}",
        f"/task?{urlencode({'queue': shop.hostile_queue, 'id': '1000-1'})}",
        "/workers",
        "/schedules",
        "/schedule?name=nightly",
        "/schedule?name=often",
        "/audit",
    ]


def test_every_view_has_an_address_here(shop):
    seen = {address.partition("?")[0] for address in addresses(shop)}

    assert {view.path for view in VIEWS} - seen == set()


def test_a_task_that_has_ended_a_canvas_and_a_schedule_that_has_run_are_among_them(operator, shop):
    shown = {address: html.unescape(operator.get(address).text) for address in addresses(shop)}
    of_tasks = [text for address, text in shown.items() if address.startswith("/task?queue=mail")]

    assert any('"sent to ann"' in text and "succeeded" in text for text in of_tasks)
    assert any('<svg class="canvas"' in text and "total" in text for text in of_tasks)
    assert "It has not run yet" not in shown["/schedule?name=often"]


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


def test_a_worker_with_a_hostile_name_is_text(operator, shop):
    worker = WorkerDescription(
        name=SCRIPT, queues=(SCRIPT,), pool=SCRIPT, concurrency=1, host=SCRIPT, started_at=SCRIPT
    )
    shop.client.zadd(workers_key("tasks"), {worker.encode(): 2**50})
    page = operator.get("/workers").text
    shop.client.zrem(workers_key("tasks"), worker.encode())

    assert SCRIPT not in page
    assert html.unescape(page).count(SCRIPT) >= 5


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

    assert re.search(rf"<dt>Lag</dt><dd><a [^>]*>{group.lag}</a>", page)
    assert re.search(rf"<dt>Pending</dt><dd><a [^>]*>{group.pending}</a>", page)
    assert (group.lag, group.pending) == (7, 4)


#: What is a property of its row, and counts nothing that another view could list.
_NO_COUNTS = {"Attempts", "Attempt", "Partition", "Epoch", "Version", "Priority", "Idle", "Late by"}
_NO_COUNTS |= {"At once", "Deliveries", "Skipped", "How many", "Process"}


class Numbers(HTMLParser):
    """Finds numbers in figures and in cells of tables, with their labels, and whether they are links."""

    def __init__(self) -> None:
        super().__init__()
        self.without_link: list[tuple[str, str]] = []
        self._heads: list[str] = []
        self._column = 0
        self._tag, self._text, self._has_link, self._label = "", "", False, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._heads = []
        if tag == "tr":
            self._column = 0
        if tag in ("dt", "dd", "td", "th"):
            self._tag, self._text, self._has_link = tag, "", False
        self._has_link |= tag == "a"

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        text = self._text.strip()
        if tag == "dt":
            self._label = text
        if tag == "th":
            self._heads.append(text)
            self._column += 1
        label = self._label if tag == "dd" else ""
        if tag == "td":
            label = self._heads[self._column] if self._column < len(self._heads) else ""
            self._column += 1
        is_number = re.fullmatch(r"[\d,.]+\+?( s| min| h)?", text) is not None
        if tag in ("dd", "td") and is_number and not self._has_link and label not in _NO_COUNTS:
            self.without_link.append((label, text))


def test_every_number_that_counts_something_leads_to_it(operator, shop):
    found, sample = {}, Numbers()
    sample.feed(
        "<dt>Lag</dt><dd>5</dd><table><tr><th>N</th></tr><tr><td><a>1</a></td></tr><tr><td>7</td></tr>"
    )
    # It is not blind.
    assert sample.without_link == [("Lag", "5"), ("N", "7")]
    for address in addresses(shop):
        numbers = Numbers()
        numbers.feed(operator.get(address).text)
        if numbers.without_link:
            found[address] = numbers.without_link

    assert found == {}


def test_numbers_lead_to_what_they_count(operator, shop):
    """Those of one partition to its own messages, the lag to what was not delivered."""
    page = html.unescape(operator.get("/topic", params={"name": shop.stream}).text)
    (lag,) = re.findall(r'<dt>Lag</dt><dd><a href="([^"]+)">7</a>', page)
    (pending,) = re.findall(r'<td class="num"><a href="(/pending[^"]+partition=0)">4</a>', page)

    assert len(re.findall(r'href="/message\?', operator.get(lag).text)) == 7
    assert len(re.findall(r'href="/message\?', operator.get(pending).text)) == 4
    nothing = operator.get("/pending", params={"name": shop.stream, "group": "analytics", "partition": "9"})
    assert "Nothing is pending" in nothing.text
    assert operator.get("/messages", params={"name": shop.stream, "partition": "x"}).status_code == 400


def test_findings_lead_to_what_they_found(operator, shop):
    for address, leads_to in (
        (f"/topic?name={shop.topic}", f"/letters?name={shop.topic}"),
        (f"/queue?name={shop.queue}", f"/queue?name={shop.queue}&where=dead_lettered"),
    ):
        page = html.unescape(operator.get(address).text)
        assert re.search(rf'<a href="{re.escape(leads_to)}">[^<]*dead letters', page), address


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
        ("/audit?before=x", 400),
        ("/task?queue=mail&id=1-1&letter=x", 400),
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


def test_what_json_can_have_and_html_cannot_is_shown(operator, shop):
    """Nothing of the payload can keep its view, or that of the others, from being shown."""
    deep = "[" * 900 + "]" * 900
    hostile = [
        '{"a":"\\ud800"}',
        '{"\\udfff":[1]}',
        f'{{"a":{deep}}}',
        "[" * 200_000,
        '{"a":1e999}',
        '{"a":"\\u0000"}',
    ]
    for text in hostile:
        envelope = f'{{"id":"x","payload":{text},"key":"\\ud800","headers":{{"h":"\\udc00"}}}}'
        for data in (text, envelope):
            shop.client.xadd("odd", {"data": data})
    shop.client.xadd("odd", {b"\xff": b"\xfe", "other": "1"})
    shop.client.xadd("{odd}:dlq", {"data": '{"errorType":"\\ud800","group":"\\ud800","payload":1}'})
    shop.client.xgroup_create("odd", "\\xff", "0")
    ids = [entry_id.decode() for entry_id, _ in shop.client.xrange("odd")]
    (letter,) = [entry_id.decode() for entry_id, _ in shop.client.xrange("{odd}:dlq")]

    asked = [f"/{view}?name=odd" for view in ("topic", "messages", "letters", "consumers", "tail")]
    asked += [f"/message?name=odd&id={one}" for one in ids] + [f"/letter?name=odd&id={letter}"]
    status = {address: operator.get(address).status_code for address in asked}

    assert {address: one for address, one in status.items() if one != 200} == {}


@pytest.mark.parametrize(
    "address",
    ["/?path=x", "/messages?name=orders&path=x&limit=1", "/letters?name=orders&self=x", "/?page=10000"],
)
def test_a_parameter_that_is_not_ours_breaks_nothing(operator, address):
    answer = operator.get(address)

    assert answer.status_code == 200
    assert "There is no topic, stream or queue" not in answer.text


@pytest.mark.parametrize(
    "bound", ["since=99999999999999999999999", "until=0001-01-01", "since=99999999999999999999-1"]
)
def test_a_time_that_no_stream_has_is_the_users_mistake(operator, bound):
    assert operator.get(f"/messages?name=orders&{bound}").status_code == 400


def test_rows_of_a_slow_server_have_their_turn_one_after_the_other(shop, monkeypatch):
    monkeypatch.setattr("conquiet.page.rows._READ_S", 0.0)
    names = [f"turn-{number}" for number in range(5)]
    for name in names:
        shop.client.xadd(name, {"data": "{}"})
    subjects, rows = [Subject(name, "stream") for name in names], Rows("tasks")

    known = [
        sum(row.level is not None for row in rows.read(shop.client, subjects, dict.fromkeys(subjects)))
        for _ in range(6)
    ]

    assert known == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (
            {"data": {"result": [{"metric": {"group": "g"}, "values": [[1, "NaN"], [2, "3"], [3, "4"]]}]}},
            "lag",
        ),
        ({"data": {"result": 7}}, "does not answer as expected"),
        ([], "does not answer as expected"),
        (None, "does not answer as expected"),
    ],
)
def test_whatever_prometheus_answers_the_view_is_shown(shop, reply, shown):
    with (
        prometheus(reply) as url,
        serving(shop.url, CONQUIET_PAGE_PROMETHEUS_URL=url) as page,
        page.client() as operator,
    ):
        answer = operator.get("/topic", params={"name": shop.topic})

    assert answer.status_code == 200
    assert shown in answer.text
    assert "nan" not in answer.text


@contextmanager
def prometheus(reply: object) -> Iterator[str]:
    """A server that answers every query with this, and with nothing at all if it is `None`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if reply is not None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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


def test_a_browser_that_comes_again_gets_more_of_the_last_messages(page, shop):
    """It had some, and leaves out those that it knows."""
    send_orders(shop, 60)

    def rows(**how: Any) -> int:
        with page.client() as operator, operator.stream("GET", "/tail/events?name=orders", **how) as events:
            found = 0
            for line in events.iter_lines():
                found += line.startswith("event: message")
                if line.startswith(": alive"):
                    return found
        return 0

    there = MqAdmin(shop.client).topic(shop.topic).length
    assert (rows(), rows(headers={"last-event-id": "1-1@0"})) == (20, min(there, 100))


def test_more_messages_than_people_can_read_do_not_keep_the_page_busy(page, shop):
    done = threading.Event()

    def send() -> None:
        with open_client(shop.url) as client:
            while not done.is_set():
                pipeline = client.pipeline(transaction=False)
                for _ in range(200):
                    pipeline.xadd("busy", {"data": "{}"}, maxlen=1_000)
                pipeline.execute()

    shop.client.xadd("busy", {"data": "{}"})
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with page.client() as operator, operator.stream("GET", "/tail/events?name=busy") as events:
            began, rows = time.monotonic(), 0
            for line in events.iter_lines():
                rows += line.startswith("event: message")
                if time.monotonic() - began > 3:
                    break
            took = time.monotonic() - began
    finally:
        done.set()
        sender.join()

    assert 0 < rows <= 100 * (took + 2)


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
    # A page that was started a minute ago has few samples, and a line.
    few = chart_of([Series("lag", ((0, 0.0), (15, 2.0), (30, 1.0)))], title="few")
    assert few is not None
    assert few.lines[0].path.count("L") == 2
    assert chart_of([], title="none") is None


#: The documented line and what is added to it: of a viewer, for samples, for an operator.
PAGE = (Path(__file__).parents[2] / "docs" / "page.md").read_text()
(VIEWER_RULES,) = re.findall(r"^user page-viewer on >PASSWORD (.*)$", PAGE, re.MULTILINE)
(SAMPLE_RULES,) = re.findall(r"`(\(%W~conquiet:samples[^`]*\))`", PAGE)


def test_a_user_who_may_only_read_is_enough_for_every_view():
    with EmbeddedServer() as server, open_client(server.url) as client:
        shop = open_shop(client, server.url)
        client.execute_command("ACL", "SETUSER", "looker", "on", ">looker-password", *VIEWER_RULES.split())
        url = server.url.replace("redis://", "redis://looker:looker-password@")
        wanted, writes = addresses(shop), _writes(client)
        with serving(url, "--read-only") as page, page.client() as operator:
            for address in wanted:
                answer = operator.get(address)
                assert answer.status_code == 200, (address, answer.text[-600:])

        assert _writes(client) == writes
        # The samples of charts, which are given up then.
        assert {entry["object"] for entry in client.acl_log()} <= {"xadd", "pexpire"}


def test_the_documented_rights_for_samples_are_enough():
    with EmbeddedServer() as server, open_client(server.url) as client:
        open_shop(client, server.url)
        rules = [*VIEWER_RULES.split(), SAMPLE_RULES]
        client.execute_command("ACL", "SETUSER", "looker", "on", ">looker-password", *rules)
        url = server.url.replace("redis://", "redis://looker:looker-password@")
        # Before anybody looks.
        with serving(url, "--read-only"):
            assert eventually(lambda: client.exists("conquiet:samples:orders"))

        assert client.acl_log() == []


def _writes(client: redis.Redis) -> int:
    """Changes of the server's data since its start."""
    return client.info("persistence")["rdb_changes_since_last_save"]
