"""The page inside of a real api-server: Airflow's login, Airflow's permissions, its menu."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from conquiet.mq import DeadLetters, Topics
from conquiet.operations import AuditLog
from tests.eventually import eventually
from tests.page.forms import fields_of
from tests.page.shop import open_shop
from tests.services import free_port, redis_server
from tests.sessions import kill_sessions
from tests.with_airflow.standalone import connection_to

pytestmark = pytest.mark.xdist_group("airflow")

PASSWORD = "page-test-password"
USERS = {"ann": "op", "vera": "viewer"}


@pytest.fixture(scope="module")
def shop():
    from conquiet.queue import open_client

    with redis_server("valkey") as url, open_client(url) as client:
        yield open_shop(client, url)


@pytest.fixture(scope="module")
def airflow_url(shop, tmp_path_factory):
    """An api-server with two users; ended with everything that it started."""
    home, port = tmp_path_factory.mktemp("airflow-page"), free_port()
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps(dict.fromkeys(USERS, PASSWORD)))
    (home / "dags").mkdir()
    settings = {
        "CORE__DAGS_FOLDER": str(home / "dags"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(":".join(one) for one in USERS.items()),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__WORKERS": "1",
        "API__SECRET_KEY": secrets.token_hex(16),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
    }
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT": connection_to(shop.url),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
    }
    subprocess.run(["airflow", "db", "migrate"], env=environment, cwd=home, check=True, capture_output=True)
    with (home / "api.out").open("wb") as output:
        process = subprocess.Popen(
            ["airflow", "api-server"],
            env=environment,
            cwd=home,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: process.poll() is not None or _answers(url))
        assert process.poll() is None, (home / "api.out").read_text()[-3_000:]
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert kill_sessions({process.pid}, "AIRFLOW_HOME", home) == []


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v2/monitor/health", timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


def as_user(url: str, name: str) -> httpx.Client:
    """As a browser that has logged in: with Airflow's cookie."""
    answer = httpx.post(f"{url}/auth/token", json={"username": name, "password": PASSWORD}, timeout=60)
    token = answer.raise_for_status().json()["access_token"]
    return httpx.Client(base_url=url, cookies={"_token": token}, follow_redirects=True, timeout=60)


@pytest.mark.parametrize("path", ["/", "/letters?name=orders", "/act/replay?name=orders", "/live?view=/"])
def test_anonymous_gets_401(airflow_url, path):
    assert httpx.get(f"{airflow_url}/conquiet{path}", timeout=60).status_code == 401
    forged = {"_token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ."}
    assert httpx.get(f"{airflow_url}/conquiet{path}", cookies=forged, timeout=60).status_code == 401


def test_a_viewer_sees_and_must_not_replay(airflow_url, shop):
    before = DeadLetters(Topics(shop.client).open(shop.topic)).count()
    with as_user(airflow_url, "vera") as vera, as_user(airflow_url, "ann") as ann:
        seen = vera.get("/conquiet/letters", params={"name": shop.topic})
        asked = vera.get("/conquiet/act/replay", params={"name": shop.topic})
        # Also with the token of an operator's form.
        form = fields_of(ann.get("/conquiet/act/replay", params={"name": shop.topic}).text)
        posted = vera.post("/conquiet/act/replay", data=form)

    assert seen.status_code == 200
    assert "NoStockError" in seen.text
    assert "Replay" not in seen.text
    assert (asked.status_code, posted.status_code) == (403, 403)
    assert DeadLetters(Topics(shop.client).open(shop.topic)).count() == before > 0


def test_an_operator_replays_and_the_audit_stream_names_her(airflow_url, shop):
    with as_user(airflow_url, "ann") as ann:
        form = fields_of(ann.get("/conquiet/act/replay", params={"name": shop.topic}).text)
        done = ann.post("/conquiet/act/replay", data=form)

    assert done.status_code == 200
    assert "Replayed 3 dead letters" in done.text
    assert DeadLetters(Topics(shop.client).open(shop.topic)).count() == 0
    assert {(one.user, one.outcome, one.count) for one in AuditLog(shop.client).last()} >= {
        ("ann", "done", 3)
    }


def test_its_links_and_scripts_are_below_its_path(airflow_url):
    with as_user(airflow_url, "vera") as vera:
        page = vera.get("/conquiet/")
        script = vera.get("/conquiet/static/page.js")

    assert 'href="/conquiet/static/page.css"' in page.text
    assert 'href="/conquiet/topic?name=orders"' in page.text
    assert page.headers["content-security-policy"].endswith("frame-ancestors 'self'")
    assert script.status_code == 200


@pytest.mark.parametrize(
    ("base_url", "leads_to"),
    [
        ("", "/conquiet/"),
        ("http://x.example", "/conquiet/"),
        ("https://x.example/airflow/", "/airflow/conquiet/"),
    ],
)
def test_the_menu_leads_below_the_path_of_airflow(base_url, leads_to, monkeypatch):
    from airflow_provider_conquiet.plugins.page import menu_address

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)

    assert menu_address() == leads_to


def test_the_menu_has_an_entry(airflow_url):
    with as_user(airflow_url, "ann") as ann:
        # Airflow 3.1 takes the token of a cookie for its pages alone.
        bearer = {"Authorization": f"Bearer {ann.cookies['_token']}"}
        plugins = ann.get("/api/v2/plugins", headers=bearer).json()["plugins"]

    (ours,) = [one for one in plugins if one["name"] == "conquiet"]
    assert [(view["name"], view["href"]) for view in ours["external_views"]] == [("Queues", "/conquiet/")]
