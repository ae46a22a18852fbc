"""Passwords are thrown into every call that can fail; no error, note, log line or output may show them."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from conquiet import (
    DrainLimits,
    EmbeddedServer,
    Inbox,
    QueueConfig,
    QueueError,
    RedisStreamsQueue,
    drain,
    open_async_client,
    open_client,
    peek_backlog,
)
from conquiet.cli.main import app
from conquiet.db.engine import open_engine
from conquiet.errors import DbError, DrainError, DrainFailure, text_of
from conquiet.masking import mask, remember_secret, scrub
from conquiet.mq import ConsumerConfig, MqAdmin, Producer, RetryPolicy, Topics, drain_partition
from conquiet.settings import Settings
from tests.cli.handlers import accept
from tests.cli.test_settings import everything_of
from tests.services import free_port, redis_binary, unavailable

#: Distinctive, so that finding one is no accident; with all that URLs, JSON and regexes stumble over.
MARK = "Zx9"
PASSWORDS = st.builds(
    lambda head, middle, tail: f"{MARK}{head}{middle}{tail}{MARK}",
    st.text("abcdefgh", min_size=2, max_size=4),
    st.text("/#?@:[]%&=+ '\"\\℀é{}*.,;|$^()", max_size=6),
    st.text("ijklmnop", min_size=2, max_size=4),
)
CONFIG = QueueConfig("orders", "billing", "worker", block_ms=50)


def pieces(password: str) -> list[str]:
    """The password in every writing, and its two halves: a parser may cut it anywhere."""
    letters = "abcdefghijklmnop"
    head = password[len(MARK) :].rstrip(MARK)
    first = MARK + head[: next((i for i, c in enumerate(head) if c not in letters), len(head))]
    return [password, quote(password, safe=""), repr(password)[1:-1], first]


def urls(password: str, port: int) -> list[str]:
    """URLs of servers that are not there, well-formed and not."""
    encoded = quote(password, safe="")
    hosts = f"127.0.0.1:{port}"
    return [
        f"redis://user:{encoded}@{hosts}/0",
        f"redis://user:{password}@{hosts}/0",
        f"rediss://:{password}@{hosts}",
        f"redis://{hosts}/0?password={encoded}",
        f"redis://{hosts}/0?password={password}",
        f"redis+sentinel://user:{encoded}@{hosts}/service/0?sentinel_password={encoded}",
        f"redis+sentinel://user:{password}@{hosts}/service/0",
        f"redis+cluster://user:{encoded}@{hosts}",
        f"redis+cluster://user:{password}@{hosts}",
        f"unix://user:{password}@/nowhere/redis.sock",
        f"http://user:{password}@{hosts}",
        f"redis://user:{encoded}@{hosts}/0?db={encoded}",
        f"redis://user:{encoded}@{hosts}/0?unknown={encoded}",
    ]


def calls(url: str) -> list[Callable[[], object]]:
    """Everything that a URL can be given to, or that fails on what was made of it."""

    def peek_from_loop():
        async def peek():
            client = open_async_client(url)
            try:
                await client.ping()
            finally:
                await client.aclose()

        return asyncio.run(peek())

    def with_client(use):
        def call():
            with open_client(url) as client:
                return use(client)

        return call

    return [
        lambda: RedisStreamsQueue.from_url(url, CONFIG),
        lambda: RedisStreamsQueue(url, CONFIG),  # type: ignore[arg-type]
        with_client(lambda client: peek_backlog(client, stream="orders", group="billing")),
        with_client(lambda client: Topics(client).create("orders")),
        with_client(lambda client: Producer(client).send("orders", {"n": 1})),
        with_client(lambda client: MqAdmin(client).groups("orders")),
        with_client(lambda client: repr(Topics(client).open("orders"))),
        peek_from_loop,
        lambda: Settings(redis_url=url, log_level=url),
        lambda: Settings.load(environment={"CONQUIET_REDIS_URL": url, "CONQUIET_NOTHING": url}),
        lambda: open_engine(url),
    ]


@pytest.fixture
def dead_port():
    return free_port()


@settings(max_examples=60)
@given(password=PASSWORDS, form=st.integers(0, 12))
def test_no_failing_call_tells_a_password_of_its_url(password, form, dead_port, caplog):
    caplog.set_level(logging.DEBUG)
    url = urls(password, dead_port)[form]
    for call in calls(url):
        caplog.clear()
        try:
            shown = repr(call())
        except Exception as error:
            # What redis-py raises on a client of its own is masked when conquiet's calls raise it.
            shown = everything_of(error) if not isinstance(error, redis.RedisError) else str(error)
        assert not [piece for piece in pieces(password) if piece in shown + caplog.text], (url, shown)


@settings(max_examples=40)
@given(password=PASSWORDS, form=st.integers(0, 12), place=st.integers(0, 7))
def test_no_command_prints_a_password(password, form, place, dead_port):
    url = urls(password, dead_port)[form]
    handler = ("--handler", "tests.cli.handlers:accept")
    arguments = (
        ("stats", "orders", "--url", url),
        ("doctor", "--url", url, "--json"),
        ("stats", "--nothing", url),
        ("up", url),
        (url,),
        ("drain", "orders", "-g", "a", *handler, "--url", url, "--database", url),
        ("enqueue", "orders", "{}", "--file", url),
        ("stats", "--config", url),
    )[place]

    ran = CliRunner().invoke(app, list(arguments))

    assert ran.exit_code not in (0, 70), (arguments, ran.output)
    assert not [piece for piece in pieces(password) if piece in ran.output], (arguments, ran.output)


DATABASES = [
    "postgresql+psycopg://app:{p}@127.0.0.1:{port}/x",
    "postgresql+psycopg://app@127.0.0.1:{port}/x?password={p}",
    "mysql+pymysql://app:{p}@127.0.0.1:{port}/x",
    "sqlite:////nowhere/{p}?password={p}",
    "nothing://app:{p}@h/x",
]


@settings(max_examples=30)
@given(password=PASSWORDS, form=st.sampled_from(DATABASES), is_encoded=st.booleans())
def test_no_failing_call_tells_a_password_of_the_database(
    password, form, is_encoded, dead_port, valkey_url, stream, caplog
):
    caplog.clear()
    url = form.format(p=quote(password, safe="") if is_encoded else password, port=dead_port)
    shown = ""
    limits = DrainLimits(max_messages=1, idle_ms=10)
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "worker")) as queue:
        makes: list[Callable[[str], Any]] = [open_engine, str]
        for make in makes:
            for inbox in (Inbox(), None):
                queue.enqueue({"n": 1})
                try:
                    drain(queue, accept, make(url), limits, inbox=inbox)
                except Exception as error:
                    shown += "".join(traceback.format_exception(error)) + everything_of(error)

    assert shown
    assert not [piece for piece in pieces(password)[:3] if piece in shown + caplog.text], (url, shown)


def test_a_wrong_password_is_not_told_by_any_server(server_url):
    secret = "Zx9wrongZx9"
    url = server_url.replace("redis://", f"redis://nobody:{secret}@")

    for call in calls(url)[:8]:
        with pytest.raises(Exception) as caught:  # noqa: PT011 -- each call has its own kind of error
            call()

        assert secret not in everything_of(caught.value)


@pytest.mark.parametrize("kind", ["redis7", "redis62"])
def test_a_server_that_repeats_the_arguments_of_a_login_does_not_leak_them(kind):
    binary = redis_binary(kind)
    if binary is None:
        unavailable("redis", f"no binary for {kind}")
    secret = "Zx9" + "long-" * 40 + "Zx9"  # the server cuts what it repeats
    with EmbeddedServer(
        binary=binary, args=["--rename-command", "AUTH", "", "--rename-command", "HELLO", ""]
    ) as server:
        for protocol in (2, 3):
            url = f"redis://default:{secret}@127.0.0.1:{server.port}/0?protocol={protocol}"
            with pytest.raises(QueueError) as caught:
                RedisStreamsQueue.from_url(url, CONFIG)

            assert "Zx9" not in everything_of(caught.value)
            assert "Zx9" not in "".join(traceback.format_exception(caught.value))


def test_texts_that_are_built_of_other_peoples_errors_are_masked():
    inner = ValueError("cannot reach redis://worker:tr0ub4dor@h")
    drained = DrainError(stream="s", group="g", report=None, failures=[DrainFailure("1-1", inner)])

    assert "tr0ub4dor" not in text_of(inner)
    assert "tr0ub4dor" not in str(drained)
    assert "tr0ub4dor" not in str(DbError(f"no: {inner}"))


def test_a_dead_letter_holds_no_password_of_the_error_that_made_it(valkey_url, stream):
    def fail(msg):
        raise ValueError("cannot reach redis://worker:tr0ub4dor@h")

    with open_client(valkey_url) as client:
        topic = Topics(client).create(stream.replace(":", "-"))
        Producer(client).send(topic.name, {"n": 1})
        config = ConsumerConfig(retry=RetryPolicy(max_attempts=1))
        drain_partition(topic, 0, "billing", fail, limits=DrainLimits(idle_ms=50), config=config)
        (stored,) = client.xrange(topic.keys.dead_letters(0))

    assert b"cannot reach" in stored[1][b"data"]
    assert b"tr0ub4dor" not in stored[1][b"data"]


def test_masking_keeps_what_is_no_secret():
    for text in (
        "redis://127.0.0.1:6379/0",
        "stream 'a:b@c' of group 'x'",
        "https://example.org/a:b",
        "entry 1700000000000-0@3",
        "the password was refused",
        "AUTH failed",
    ):
        assert mask(text) == text


def test_a_remembered_secret_is_masked_in_every_writing():
    remember_secret('tr0u"b4\\dor/é')

    for written in (
        'tr0u"b4\\dor/é',
        repr('tr0u"b4\\dor/é'),
        quote('tr0u"b4\\dor/é', safe=""),
        '"tr0u\\"b4\\\\dor/\\u00e9"',
    ):
        assert "b4" not in mask(f"so {written} it was")


def test_an_error_is_scrubbed_with_its_notes_and_its_causes():
    cause = ValueError("password=tr0ub4dor")
    error = RuntimeError("redis://a:tr0ub4dor@h", 7)
    error.__cause__ = cause
    error.add_note("{'password': 'tr0ub4dor'}")

    scrub(error)

    assert "tr0ub4dor" not in everything_of(error)
    assert error.args[1] == 7
