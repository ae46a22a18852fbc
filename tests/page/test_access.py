"""Who gets in: tokens, users, a proxy's header; roles; forms of other sites; headers of every response."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from urllib.parse import urlsplit

import httpx
import pytest

from conquiet.errors import SettingsError
from conquiet.mq import DeadLetters, Topics
from conquiet.operations import AuditLog
from conquiet.page import PageSettings, Site, User, build_page
from conquiet.page.application import ACTIONS, VIEWS
from conquiet.page.logins import hash_password, is_password
from conquiet.page.serving import entrance_of
from conquiet.settings import Settings
from tests.page.forms import fields_of
from tests.page.served import serving

HTML = {"accept": "text/html"}
PATHS = [
    *(view.path for view in VIEWS),
    *(f"/act/{action.name}" for action in ACTIONS),
    "/live?view=/",
    "/tail/events?name=orders",
]


def letters(shop) -> int:
    return DeadLetters(Topics(shop.client).open(shop.topic)).count()


@pytest.mark.parametrize("path", PATHS)
def test_anonymous_sees_nothing(page, path):
    with page.anonymous() as anonymous:
        assert anonymous.get(path).status_code == 401
        assert anonymous.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        as_browser = anonymous.get(path, headers=HTML)

    assert (as_browser.status_code, urlsplit(as_browser.headers["location"]).path) == (303, "/login")


def test_anonymous_changes_nothing(page, shop):
    before = letters(shop)

    with page.anonymous() as anonymous:
        answers = [
            anonymous.post(f"/act/{action.name}", data={"name": shop.topic, "queue": shop.queue})
            for action in ACTIONS
        ]

    assert {answer.status_code for answer in answers} == {401}
    assert letters(shop) == before


def test_the_link_gives_a_cookie_and_leaves_no_token_in_the_address(page):
    with page.anonymous() as browser:
        first = browser.get(page.link, headers=HTML)
        cookie = first.headers["set-cookie"]
        second = browser.get(first.headers["location"], headers=HTML)

    assert first.status_code == 303
    assert "token" not in first.headers["location"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert second.status_code == 200


def test_the_form_takes_the_token_and_no_other(page):
    with page.anonymous() as browser:
        wrong = browser.post("/login", data={"token": "wrong"})
        right = browser.post("/login", data={"token": page.token})
        seen = browser.get("/")
        browser.post("/logout")
        gone = browser.get("/")

    assert (wrong.status_code, right.status_code, seen.status_code, gone.status_code) == (401, 303, 200, 401)


@pytest.mark.parametrize("value", ["", "x", "x.y", "W10=.", "eyJ9.0" * 50])
def test_a_cookie_that_was_not_given_is_none(page, value):
    port = urlsplit(page.url).port
    with page.anonymous() as browser:
        assert browser.get("/", cookies={f"conquiet_user_{port}": value}).status_code == 401


def test_the_login_leads_to_what_was_asked_for(page):
    with page.anonymous() as browser:
        sent = browser.get("/letters?name=orders", headers=HTML).headers["location"]
        form = browser.get(sent).text
        answer = browser.post("/login", data={"token": page.token, "next": "/letters?name=orders"})

    assert 'value="/letters?name=orders"' in form
    assert answer.headers["location"] == "/letters?name=orders"


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "/\t/evil.example", "evil"]
)
def test_the_login_leads_to_no_other_host(page, elsewhere):
    with page.anonymous() as browser:
        answer = browser.post("/login", data={"token": page.token, "next": elsewhere})

    assert answer.headers["location"] == "/"


def test_two_pages_of_one_host_do_not_log_each_other_out(page, shop):
    with serving(shop.url) as other, httpx.Client(follow_redirects=True, timeout=60) as browser:
        browser.get(page.link)
        browser.get(other.link)
        status = [browser.get(f"{url}/audit").status_code for url in (page.url, other.url)]

    assert status == [200, 200]


def test_behind_a_proxy_with_tls_the_link_stays_with_its_scheme_and_the_cookie_is_secure(page):
    with page.anonymous() as proxy:
        headers = HTML | {"host": "queues.example.com", "x-forwarded-proto": "https"}
        answer = proxy.get(f"/topic?name=orders&token={page.token}", headers=headers)

    assert answer.headers["location"] == "/topic?name=orders"
    assert "Secure" in answer.headers["set-cookie"]


def test_a_form_that_is_too_large_is_not_read(page):
    def without_end():
        for _ in range(10_000):
            yield b"x=" + b"y" * 1_000 + b"&"

    with page.anonymous() as browser:
        large = browser.post("/login", data={"token": "x" * 1_100_000})
        endless = browser.post("/login", content=without_end())

    assert (large.status_code, endless.status_code) == (400, 400)


@pytest.mark.parametrize("name", ["page_token", "page_viewer_token"])
def test_a_token_that_can_be_guessed_is_refused(name):
    with pytest.raises(SettingsError, match="16 characters or more"):
        entrance_of(Settings(**{name: "secret"}), "s" * 20)


def test_an_empty_password_has_no_hash():
    words = [sys.executable, "-m", "conquiet.cli", "page", "--hash-password"]
    ran = subprocess.run(words, input="\n", capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert "pbkdf2" not in ran.stdout


def test_a_bug_has_the_headers_of_all_responses_and_says_nothing_of_the_inside(monkeypatch):
    class Everybody:
        async def admit(self, _request):
            return User("ann", "viewer")

    site = Site(lambda: "redis://127.0.0.1:1/0", PageSettings(secret="s" * 32, takes_samples=False))
    monkeypatch.setattr(site.catalogue, "subjects", {}.__getitem__)
    transport = httpx.ASGITransport(build_page(site, Everybody()), raise_app_exceptions=False)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as browser:
            return await browser.get("/")

    answer = asyncio.run(ask())

    assert answer.status_code == 500
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "subjects" not in answer.text
    assert "Traceback" not in answer.text


def test_a_cookie_of_a_viewer_cannot_be_made_one_of_an_operator(page, viewer):
    (cookie,) = [one for one in viewer.cookies.jar if one.name.startswith("conquiet_user")]
    body, _, signature = (cookie.value or "").partition(".")
    changed = base64.urlsafe_b64encode(
        base64.urlsafe_b64decode(body).replace(b"viewer", b"operator")
    ).decode()

    with page.anonymous() as browser:
        assert browser.get("/", cookies={cookie.name: f"{body}.{signature}"}).status_code == 200
        browser.cookies.clear()
        assert browser.get("/", cookies={cookie.name: f"{changed}.{signature}"}).status_code == 401


def test_a_viewer_sees_everything_and_is_offered_nothing(viewer, shop):
    for path in ("/", f"/letters?name={shop.topic}", f"/queue?name={shop.queue}", "/schedules"):
        answer = viewer.get(path)
        assert answer.status_code == 200
        assert "/act/" not in answer.text.replace("/act/cancel-delayed", "").replace(
            'action="/act/replay"', ""
        )


def test_a_viewer_must_not_act_also_with_the_token_of_an_operators_form(viewer, operator, shop):
    before = letters(shop)
    form = fields_of(operator.get("/act/replay", params={"name": shop.topic}).text)

    assert viewer.get("/act/replay", params={"name": shop.topic}).status_code == 403
    assert viewer.post("/act/replay", data=form).status_code == 403
    assert letters(shop) == before


def test_a_form_of_another_site_is_refused(operator, shop):
    before = letters(shop)
    form = fields_of(operator.get("/act/replay", params={"name": shop.topic}).text)
    without = {name: value for name, value in form.items() if name != "form_token"}

    answers = [
        operator.post("/act/replay", data=without),
        operator.post("/act/replay", data=without | {"form_token": "0" * 64}),
        operator.post("/act/replay", data=form, headers={"sec-fetch-site": "cross-site"}),
        operator.post("/act/replay", data=form, headers={"sec-fetch-site": "same-site"}),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 403, 403]
    assert letters(shop) == before
    assert AuditLog(shop.client).last() == []


def test_the_cookie_of_forms_is_strict_and_no_script_reads_it(page):
    with page.anonymous() as browser:
        browser.get(page.link, headers=HTML)
        cookies = browser.get("/").headers.get_list("set-cookie")

    (ours,) = [cookie for cookie in cookies if cookie.startswith("conquiet_form")]
    assert "HttpOnly" in ours
    assert "SameSite=strict" in ours


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/nothing", "/topic", "/login", "/health"])
def test_every_response_forbids_what_the_page_does_not_need(operator, path):
    headers = operator.get(path).headers

    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_read_only_refuses_operators_too(shop):
    with serving(shop.url, "--read-only") as page, page.client() as operator:
        seen = operator.get("/letters", params={"name": shop.topic})
        asked = operator.get("/act/replay", params={"name": shop.topic})

    assert (seen.status_code, asked.status_code) == (200, 403)
    assert "read-only" in seen.text
    assert "/act/replay?" not in seen.text


def test_users_of_a_file_log_in_with_their_passwords(shop, tmp_path):
    users = tmp_path / "users"
    printed = subprocess.run(
        [sys.executable, "-m", "conquiet.cli", "page", "--hash-password"],
        input="s3cret pa:ss\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    users.write_text(f"# the shop\nann:operator:{printed}\nvera:viewer:{hash_password('look')}\n")

    with serving(shop.url, CONQUIET_PAGE_USERS=str(users)) as page:
        assert "token" not in page.link
        status = {
            (name, password): httpx.get(
                f"{page.url}/act/replay?name=orders", auth=(name, password)
            ).status_code
            for name, password in [
                ("ann", "s3cret pa:ss"),
                ("ann", "wrong"),
                ("vera", "look"),
                ("vera", "s3cret pa:ss"),
                ("eve", ""),
            ]
        }

    assert list(status.values()) == [200, 401, 403, 401, 401]
    assert "s3cret" not in users.read_text()


def test_the_header_of_a_proxy_is_believed_from_the_proxy_alone(shop):
    settings = {"CONQUIET_PAGE_USER_HEADER": "X-Forwarded-User", "CONQUIET_PAGE_OPERATORS": "ann, bob"}
    with serving(shop.url, **settings) as page:
        url = f"{page.url}/act/replay?name=orders"
        ann, vera = ({"x-forwarded-user": name} for name in ("ann", "vera"))
        twice = httpx.Headers([("x-forwarded-user", "vera"), ("x-forwarded-user", "ann")])
        status = [httpx.get(url, headers=headers).status_code for headers in (ann, vera, {}, twice)]
    with serving(shop.url, **settings, CONQUIET_PAGE_PROXIES="10.0.0.1") as page:
        elsewhere = httpx.get(f"{page.url}/", headers=ann).status_code

    assert status == [200, 403, 401, 401]
    assert elsewhere == 401


def test_two_ways_in_at_once_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="exclude each other"):
        entrance_of(Settings(page_token="t" * 20, page_user_header="X-User"), "s" * 20)
    with pytest.raises(SettingsError, match="cannot be read"):
        entrance_of(Settings(page_users=str(tmp_path / "none")), "s" * 20)


def test_a_password_is_kept_as_a_hash_of_its_own():
    first, second = hash_password("same"), hash_password("same")

    assert first != second
    assert is_password("same", first)
    assert not is_password("other", first)


@pytest.mark.parametrize(
    "wrong", [{"secret": "short"}, {"trace_url": "https://traces/"}, {"prometheus_url": "file:///etc/passwd"}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=r"secret|trace_id|http"):
        PageSettings(**{"secret": "s" * 32, **wrong})


def test_it_listens_on_this_machine_alone(page):
    assert page.url.startswith("http://127.0.0.1:")


def test_below_a_path_that_a_proxy_takes_off_every_address_has_it(shop):
    with serving(shop.url, "--root-path", "/queues/") as page, page.anonymous() as proxy:
        seen = proxy.get("/", headers={"authorization": f"Bearer {page.token}"})
        login = proxy.get("/", headers=HTML)
        style = proxy.get("/static/page.css")

    assert 'href="/queues/topic?name=orders"' in seen.text
    assert 'href="/queues/static/page.css"' in seen.text
    assert 'data-live="/queues/live?view=%2F"' in seen.text
    assert login.headers["location"] == "/queues/login"
    assert (seen.status_code, style.status_code) == (200, 200)
