"""Pages of a stream are bounded by their bytes while the server reads them, whatever came before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import chain

import pytest
import redis

from conquiet.mq import DeadLetters, MessageBrowser, MessageQuery, Topics
from conquiet.queue import peek_backlog
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.connection import AS_BYTES
from conquiet.queue.message import pairs_of
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import run_steps
from tests.measured_client import MeasuredClient
from tests.services import Client

LARGE = b'{"text":"' + b"x" * (2 << 20) + b'"}'
#: A page ends with the entry that passes its limit; ids and names are some more.
MOST_BYTES = BATCH_BYTES + len(LARGE) + 100_000


@pytest.fixture
def measured(server_url: str) -> Iterator[MeasuredClient]:
    with MeasuredClient.from_url(server_url) as opened:
        yield opened


@pytest.fixture
def limited_url(client: redis.Redis, server_url: str, stream: str) -> Iterator[str]:
    """The server for a user who may read the stream and run no script."""
    name = f"reader-{uuid.uuid4().hex[:10]}"
    client.acl_setuser(name, enabled=True, nopass=True, keys=[stream], commands=["+xrange", "+xrevrange"])
    try:
        yield server_url.replace("redis://", f"redis://{name}:any@")
    finally:
        client.acl_deluser(name)


def add_tiny_and_then_large(client: Client, stream: str) -> list[bytes]:
    tiny = [client.xadd(stream, {"data": b'{"text":"x"}'}) for _ in range(300)]
    return tiny + [client.xadd(stream, {"data": LARGE}) for _ in range(20)]


def read_all(client: Client, pages: EntryPages, most: int = 500) -> list[list[bytes]]:
    def call(*command, **options):
        return client.execute_command(*command, **AS_BYTES, **options)

    read: list[list[bytes]] = []
    while not pages.is_end:
        entries = run_steps(call, pages.next(most))
        assert all(pairs_of(fields)[0][0] == b"data" for _, fields in entries)
        read.append([name for name, _ in entries])
    return read


@pytest.mark.parametrize("newest_first", [False, True])
def test_every_entry_is_read_once_in_order_and_no_page_is_large(measured, client, stream, newest_first):
    ids = add_tiny_and_then_large(client, stream)

    read = read_all(measured, EntryPages(stream, newest_first=newest_first))

    assert [*chain(*read)] == (ids[::-1] if newest_first else ids)
    assert max(measured.sizes) < MOST_BYTES
    assert max(map(len, read)) > 100


def test_an_interval_is_read_and_a_page_has_no_more_entries_than_asked_for(client, stream):
    ids = [client.xadd(stream, {"data": "{}", "more": "x"}) for _ in range(30)]
    pages = EntryPages(stream, first=f"({ids[3].decode()}", last=ids[20].decode())

    read = read_all(client, pages, most=4)

    assert [*chain(*read)] == ids[4:21]
    assert max(map(len, read)) == 4


def test_without_their_content_entries_are_counted_by_what_the_server_reads(measured, client, stream):
    ids = add_tiny_and_then_large(client, stream)
    pages, size = EntryPages(stream), 0
    read: list[str] = []

    while not pages.is_end:
        page = run_steps(
            lambda *parts, **_: measured.execute_command(*parts, **AS_BYTES), pages.next_ids(500)
        )
        assert page.size < MOST_BYTES
        read, size = read + page.ids, size + page.size

    assert read == [name.decode() for name in ids]
    assert size >= 20 * len(LARGE)
    assert max(measured.sizes) < 100_000


def test_who_may_run_no_script_gets_ten_at_a_time(client, limited_url, stream):
    ids = [client.xadd(stream, {"data": "{}"}) for _ in range(25)]
    with redis.Redis.from_url(limited_url) as limited:
        read = read_all(limited, EntryPages(stream))
        backlog_pages = EntryPages(stream, newest_first=True)
        page = run_steps(
            lambda *parts, **_: limited.execute_command(*parts, **AS_BYTES), backlog_pages.next_ids(3)
        )

    assert [len(page) for page in read] == [10, 10, 5]
    assert [*chain(*read)] == ids
    assert page == ([name.decode() for name in ids[:-4:-1]], 6)


def test_another_refusal_is_raised(client, stream):
    client.set(stream, "no stream")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        read_all(client, EntryPages(stream))


def test_who_looks_at_tiny_and_then_large_messages_reads_few_at_a_time(measured, client, stream):
    name = stream.replace(":", "-")
    add_tiny_and_then_large(client, name)
    client.rename(name, f"{{{name}}}:dlq")
    add_tiny_and_then_large(client, name)
    opened = Topics(measured).open(name)

    assert DeadLetters(opened).purge(older_than_ms=0, dry_run=True) == 320
    assert DeadLetters(opened).list(limit=10, newest_first=True).letters[0].size == len(LARGE)
    browser, read, query = MessageBrowser(measured), 0, MessageQuery(limit=500, oldest_first=True)
    while True:
        page = browser.page(name, query)
        read += len(page.messages)
        if page.cursor is None:
            break
        query = MessageQuery(limit=500, oldest_first=True, cursor=page.cursor)
    client.xgroup_create(name, "billing", "0-0")
    client.xreadgroup("billing", "worker-1", {name: ">"}, count=1)
    client.xdel(name, client.xrange(name, count=9)[-1][0])
    backlog = peek_backlog(measured, stream=name, group="billing")

    assert (read, backlog.lag) == (320, 318)
    assert max(measured.sizes) < MOST_BYTES
    client.delete(name, f"{{{name}}}:dlq")
