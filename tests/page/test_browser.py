"""The page in a headless Chromium: every view, in light, dark and on a phone, by keyboard, live."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from conquiet import EmbeddedServer
from conquiet.mq import DeadLetters, Topics
from conquiet.operations import SampleRing, take_samples
from conquiet.operations.samples import EVERY_MS
from conquiet.queue import open_client
from conquiet.tasks import Worker, WorkerConfig
from tests.eventually import eventually
from tests.page.browser import PHONE, WIDE, chromium
from tests.page.served import serving
from tests.page.shop import app_of, drain_orders, open_shop, send_orders
from tests.page.test_views import addresses

pytestmark = pytest.mark.xdist_group("chromium")

#: Pictures of docs/page.md are made again where this names the folder.
PICTURES = os.environ.get("CONQUIET_TEST_PICTURES")


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def own_shop():
    with EmbeddedServer() as server, open_client(server.url) as client:
        found = open_shop(client, server.url)
        _add_history(found)
        yield found


@pytest.fixture(scope="module")
def served(own_shop):
    with serving(own_shop.url) as opened:
        yield opened


@pytest.fixture
def logged_in(browser, served):
    browser.resize(WIDE)
    browser.prefer("light")
    browser.open(served.link)
    browser.complaints()
    browser.hosts()
    return browser


def _add_history(shop) -> None:
    """As if the page had run for 20 minutes: 30 orders waited, and were handled."""
    from dataclasses import replace

    ring, now = SampleRing(shop.client), int(time.time() * 1000)
    samples = take_samples(shop.client, [shop.topic])
    for number in range(80, 1, -1):
        left, at_ms = max(0, number % 40 - 10), now - number * EVERY_MS
        ring.write([replace(one, at_ms=at_ms, lag=left, pending=min(left, 4)) for one in samples])


def test_every_view_light_dark_and_on_a_phone(logged_in, served, own_shop):
    shown = []
    for address in addresses(own_shop):
        for scheme, size in (("light", WIDE), ("dark", WIDE), ("light", PHONE)):
            logged_in.prefer(scheme)
            logged_in.resize(size)
            logged_in.open(served.url + address)
            where = f"{address} {scheme} {size}"
            assert logged_in.find("h1").text, where
            # It may be in the name of what is shown; the script sets nothing else.
            assert logged_in.title != "owned", where
            assert logged_in.barriers() == [], where
            assert logged_in.complaints() == [], where
            back = logged_in.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            shown.append((scheme, back))

    assert logged_in.hosts() == {urlsplit(served.url).netloc}
    assert {back for scheme, back in shown if scheme == "light"}.isdisjoint(
        back for scheme, back in shown if scheme == "dark"
    )


def test_what_the_checks_of_this_file_find(logged_in, served):
    """They are not blind: a page with barriers, an error and another host has all three."""
    logged_in.open(f"{served.url}/audit")
    logged_in.driver.execute_script(
        "const one = document.createElement('button'); document.querySelector('main').append(one);"
        "document.querySelector('main p').id = 'pale';"
        "const style = new CSSStyleSheet(); style.replaceSync('#pale { color: #cfd3d6 }');"
        "document.adoptedStyleSheets = [style];"
        "setTimeout(() => { throw new Error('on purpose') }, 0);"
        "const image = new Image(); image.src = 'http://127.0.0.2:9/x.png'; document.body.append(image);"
    )

    found = logged_in.barriers()
    said = eventually(
        lambda: [text for text in logged_in.complaints() if "on purpose" in text or "127.0.0.2" in text]
    )

    assert any(text.startswith("no name") for text in found)
    assert any(text.startswith("contrast") for text in found)
    assert any(text.startswith("no alternative") for text in found)
    assert said


def test_a_script_in_the_page_would_not_run(logged_in, served):
    logged_in.open(f"{served.url}/audit")
    logged_in.driver.execute_script(
        "const one = document.createElement('script'); one.textContent = \"document.title = 'owned'\";"
        "document.body.append(one);"
    )

    assert "owned" not in logged_in.title
    assert any("Content Security Policy" in text for text in logged_in.complaints())


def test_a_poison_message_is_found_understood_and_replayed(browser, tmp_path):
    """As a new user: from the link of the start to the handled message, without an address typed."""
    with EmbeddedServer() as server, open_client(server.url) as client, serving(server.url) as served:
        shop = open_shop(client, server.url)
        letters = DeadLetters(Topics(client).open(shop.topic))
        browser.resize(WIDE)
        browser.open(served.link)
        # What needs attention is named on the first page, with a number that leads there.
        eventually(lambda: "3 dead letters were neither replayed nor purged" in browser.text)
        eventually(lambda: _click(browser, f'a[href="/letters?name={shop.topic}"]'))
        eventually(lambda: "NoStockError" in browser.text)
        assert "no stock for order" in browser.text
        eventually(lambda: _click(browser, ".errors a[href^='/letter?']"))
        eventually(lambda: "Traceback" in browser.text)
        assert '"order_id"' in browser.text
        browser.driver.back()
        # The bug is fixed now.
        eventually(lambda: _click(browser, ".errors a.primary"))
        eventually(lambda: "3 dead letters match and would be replayed" in browser.text)
        assert "conquiet dlq replay orders --all" in browser.text
        browser.find("form.confirm button").click()
        eventually(lambda: "Replayed 3 dead letters." in browser.text)

        assert letters.count() == 0
        assert drain_orders(shop, is_fixed=True) == 3
        assert browser.complaints() == []


def test_an_open_page_follows_what_happens(logged_in, served, own_shop):
    logged_in.open(f"{served.url}/topic?name={own_shop.topic}")
    eventually(lambda: logged_in.shown("#live-state") == "live")
    before = int(logged_in.shown("#facts dd") or 0)
    send_orders(own_shop, 7)

    eventually(lambda: logged_in.shown("#facts dd") == str(before + 7))
    drain_orders(own_shop, is_fixed=True)
    eventually(lambda: logged_in.shown("#groups dd") == "0")
    assert logged_in.complaints() == []


def test_an_open_task_shows_its_result_when_it_has_ended(logged_in, served, own_shop):
    with app_of(own_shop) as app:
        handle = app.tasks["shop.later"].enqueue(one=20, two=22)
        logged_in.open(f"{served.url}/task?queue={handle.queue}&id={handle.id}")
        eventually(lambda: logged_in.shown("#live-state") == "live")
        assert logged_in.shown("#result") == ""
        assert "22" in (logged_in.shown("#arguments") or "")
        with Worker(app, WorkerConfig(queues=(handle.queue,), pool="thread", concurrency=1)):
            eventually(lambda: "42" in (logged_in.shown("#result") or ""))

    eventually(lambda: "succeeded" in (logged_in.shown("#task") or ""))
    assert "until it has ended" in (logged_in.shown("#arguments") or "")
    assert logged_in.complaints() == []


def test_the_tail_shows_messages_as_they_are_added(logged_in, served, own_shop):
    logged_in.open(f"{served.url}/tail?name={own_shop.topic}")
    eventually(lambda: logged_in.count("#tail tr") == 20)
    send_orders(own_shop, 3)

    eventually(lambda: logged_in.count("#tail tr") == 23)
    drain_orders(own_shop, is_fixed=True)


def test_pages_that_are_not_looked_at_leave_connections_for_the_others(logged_in, served, own_shop):
    """A browser opens six to one host, and every page that is open wants one."""
    first = logged_in.driver.current_window_handle
    for _ in range(8):
        logged_in.driver.switch_to.new_window("tab")
        logged_in.open(f"{served.url}/topic?name={own_shop.topic}")
        assert eventually(lambda: logged_in.shown("#live-state") == "live")
    for handle in logged_in.driver.window_handles:
        if handle != first:
            logged_in.driver.switch_to.window(handle)
            logged_in.driver.close()
    logged_in.driver.switch_to.window(first)


def test_an_update_keeps_what_was_chosen(logged_in, served, own_shop):
    logged_in.open(f"{served.url}/letters?name={own_shop.topic}")
    eventually(lambda: logged_in.shown("#live-state") == "live")
    chosen = logged_in.driver.execute_script(
        "const box = document.querySelector('#letters tbody input'); box.click(); return box.value"
    )
    send_orders(own_shop, 10)
    drain_orders(own_shop, is_fixed=False)

    eventually(lambda: logged_in.count("#letters tbody tr") > 3)
    checked = logged_in.driver.execute_script(
        "return Array.from(document.querySelectorAll('#letters tbody input:checked'), (box) => box.value)"
    )
    assert checked == [chosen]


def test_nothing_chosen_asks_for_nothing(logged_in, served, own_shop):
    logged_in.open(f"{served.url}/letters?name={own_shop.topic}")
    logged_in.find("#letters button.primary").click()

    assert "/letters" in logged_in.driver.current_url
    assert logged_in.shown("#live-state") == "choose at least one row"


def test_everything_is_reached_by_keyboard(logged_in, served, own_shop):
    logged_in.open(f"{served.url}/")
    logged_in.find("body").send_keys("j")
    focused = logged_in.driver.switch_to.active_element
    assert focused.get_attribute("href").startswith(f"{served.url}/")
    focused.send_keys("/")
    assert logged_in.driver.switch_to.active_element.get_attribute("name") == "q"
    logged_in.driver.switch_to.active_element.send_keys(own_shop.topic, Keys.ENTER)
    eventually(lambda: "q=orders" in logged_in.driver.current_url)
    logged_in.find("body").send_keys("s")
    eventually(lambda: logged_in.driver.current_url.endswith("/schedules"))
    logged_in.find("body").send_keys("?")
    assert logged_in.find("dialog#keys").is_displayed()


def test_the_theme_can_be_switched_and_is_remembered(logged_in, served):
    def theme() -> str:
        return logged_in.driver.execute_script(
            "return getComputedStyle(document.documentElement).colorScheme"
        )

    logged_in.prefer("dark")
    logged_in.open(f"{served.url}/audit")
    assert theme() == "dark"
    logged_in.find("#theme").click()
    assert theme() == "light"
    logged_in.open(f"{served.url}/")
    assert theme() == "light"
    logged_in.driver.execute_script("localStorage.clear()")


def test_pictures_of_the_views(logged_in, served, own_shop, tmp_path):
    folder = Path(PICTURES) if PICTURES else tmp_path
    views = [
        ("overview", "/", "light", WIDE),
        ("phone", "/", "light", PHONE),
        ("topic", f"/topic?name={own_shop.topic}", "dark", WIDE),
        ("dead-letters", f"/letters?name={own_shop.topic}", "light", WIDE),
        ("replay", f"/act/replay?name={own_shop.topic}", "light", WIDE),
        ("queue", f"/queue?name={own_shop.queue}&where=queued", "dark", WIDE),
    ]
    for name, address, scheme, size in views:
        logged_in.prefer(scheme)
        logged_in.resize(size)
        logged_in.open(served.url + address)
        logged_in.save(folder / f"page-{name}.png")

    pictures = {picture.name: picture.read_bytes()[:4] for picture in folder.glob("page-*.png")}
    assert pictures == {f"page-{name}.png": b"\x89PNG" for name, *_ in views}


def test_the_pictures_of_the_documentation_are_those(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    shown = set(re.findall(r"\]\(images/(page-[\w-]+\.png)\)", (docs / "page.md").read_text()))

    assert shown == {picture.name for picture in (docs / "images").glob("page-*.png")}


def _click(browser, selector: str) -> bool:
    """Click what an update may replace in this very moment."""
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

    try:
        browser.find(selector).click()
    except (NoSuchElementException, StaleElementReferenceException):
        return False
    return True
