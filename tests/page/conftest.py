"""A shop on a server of its own, and a page over it, for the session of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from conquiet.queue import open_client
from tests.page.served import Served, serving
from tests.page.shop import Shop, open_shop
from tests.services import redis_server


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """No config file of the machine reaches a test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with redis_server("valkey") as url, open_client(url) as client:
        yield open_shop(client, url)


@pytest.fixture(scope="module")
def page(shop) -> Iterator[Served]:
    with serving(shop.url, CONQUIET_PAGE_VIEWER_TOKEN="viewer-token-of-the-tests") as served:
        yield served


@pytest.fixture
def operator(page) -> Iterator[httpx.Client]:
    """A browser without scripts that has logged in with the token of the link."""
    with page.client() as client:
        yield client


@pytest.fixture
def viewer(page) -> Iterator[httpx.Client]:
    with page.client("viewer-token-of-the-tests") as client:
        yield client
