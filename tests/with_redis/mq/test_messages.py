"""MessageBrowser: what is in a topic or stream, page by page; reading it delivers nothing."""

from __future__ import annotations

import pytest

from conquiet.mq import Message, MessageBrowser, MessageQuery, MqAdmin, Producer, TopicError, Topics


@pytest.fixture
def name(stream):
    return stream.replace(":", "-")


@pytest.fixture
def browser(client):
    return MessageBrowser(client)


@pytest.fixture
def topic(client, name):
    return Topics(client).create(name, partitions=3)


def send(client, topic, count, **fields):
    messages = [Message(payload={"n": n}, key=f"key-{n % 9}", **fields) for n in range(count)]
    return Producer(client).send_many(topic, messages)


def all_pages(browser, topic, **query):
    cursor, seen, pages = None, [], 0
    while True:
        page = browser.page(topic, MessageQuery(cursor=cursor, **query))
        seen += page.messages
        pages += 1
        cursor = page.cursor
        if cursor is None:
            return seen, pages


@pytest.mark.parametrize("oldest_first", [False, True])
def test_pages_over_all_partitions_have_each_message_once_in_order(client, browser, topic, oldest_first):
    send(client, topic, 57)

    seen, pages = all_pages(browser, topic.name, limit=10, oldest_first=oldest_first)

    assert sorted(one.payload["n"] for one in seen) == list(range(57))
    assert [one.position for one in seen] == sorted((one.position for one in seen), reverse=not oldest_first)
    assert pages == 6
    assert {one.partition for one in seen} == {0, 1, 2}
    assert {one.key for one in seen} == {f"key-{n}" for n in range(9)}


def test_reading_delivers_nothing(client, browser, topic):
    send(client, topic, 9)
    MqAdmin(client).create_group(topic, "billing")

    all_pages(browser, topic.name)

    (group,) = MqAdmin(client).groups(topic.name)
    assert (group.lag, group.pending) == (9, 0)


def test_a_search_by_key_text_and_time(client, browser, topic):
    first = send(client, topic, 20)
    ids = [one.id for one in all_pages(browser, topic, oldest_first=True)[0]]
    assert sorted(ids) == sorted(first)

    assert {one.payload["n"] for one in all_pages(browser, topic, key="key-2")[0]} == {2, 11}
    assert [one.payload["n"] for one in all_pages(browser, topic, text='"n":19}')[0]] == [19]
    assert all_pages(browser, topic, text="nowhere")[0] == []
    middle = sorted(ids, key=lambda one: tuple(map(int, one.split("-"))))[10]
    later, _ = all_pages(browser, topic, since=middle)
    earlier, _ = all_pages(browser, topic, until=middle)
    assert {one.id for one in later} | {one.id for one in earlier} == set(ids)


def test_a_plain_stream_and_its_malformed_entries(client, browser, queue, stream):
    queue.enqueue({"order": 1})
    client.xadd(stream, {"a": "1", "b": b"\xff"})

    malformed, first = browser.page(stream).messages

    assert (first.payload, first.key, first.problem) == ({"order": 1}, None, None)
    assert malformed.payload is None
    assert "exactly one field" in malformed.problem
    assert malformed.fields == {"a": "1", "b": "\\xff"}


def test_large_messages_are_read_a_few_at_a_time(client, browser, queue, stream):
    for n in range(24):
        queue.enqueue({"n": n, "text": "x" * 2_000_000})

    page = browser.page(stream, MessageQuery(limit=100))

    # A page has 32 MiB at most, and says where the next one begins.
    assert 10 < len(page.messages) < 20
    rest = browser.page(stream, MessageQuery(limit=100, cursor=page.cursor))
    assert [one.payload["n"] for one in (*page.messages, *rest.messages)] == list(reversed(range(24)))


def test_where_a_message_is_in_each_group(client, browser, make_queue, stream):
    billing, audit = make_queue(group="billing"), make_queue("auditor", group="audit")
    ids = billing.enqueue_many([{"n": n} for n in range(3)])
    done, pending = billing.read(50, 2)
    billing.ack(done)

    places = [browser.places(stream, browser.message(stream, one)) for one in ids]

    assert [[(place.group, place.state) for place in each] for each in places] == [
        [("audit", "undelivered"), ("billing", "done")],
        [("audit", "undelivered"), ("billing", "pending")],
        [("audit", "undelivered"), ("billing", "undelivered")],
    ]
    entry = places[1][1].entry
    assert (entry.id, entry.consumer, entry.deliveries) == (pending.id, "worker-1", 1)
    assert audit.read(50)


def test_an_entry_that_is_not_there_is_an_error(browser, client, topic):
    send(client, topic, 1)

    with pytest.raises(TopicError, match="has no entry 1-1; it may have been trimmed"):
        browser.message(topic, "1-1")
    with pytest.raises(TopicError, match="neither a topic nor a stream"):
        browser.page("nothing-of-this-name")


def test_an_id_that_several_partitions_have_asks_for_the_partition(client, browser, topic):
    for partition in (0, 2):
        client.xadd(topic.keys.stream(partition), {"data": f'{{"n":{partition}}}'}, id="77-1")

    with pytest.raises(TopicError, match="give 77-1@0 or 77-1@2"):
        browser.message(topic, "77-1")
    assert browser.message(topic, "77-1@2").payload == {"n": 2}


def test_tail_yields_what_is_added_in_order_also_of_partitions_that_come_later(client, browser, topic):
    send(client, topic, 5)
    rounds = iter(range(4))

    def wait():
        """Called when there is nothing new: add something, or end."""
        match next(rounds, None):
            case 0:
                Producer(client).send(topic, {"n": "a"}, partition=0)
            case 1:
                Producer(client).send(topic, {"n": "b"}, partition=1)
            case 2:
                grown = Topics(client).grow(topic.name, 4)
                Producer(client).send(grown, {"n": "c"}, partition=3)
            case 3:
                return False
            case None:
                return True
        return False

    assert [one.payload["n"] for one in browser.tail(topic, wait)] == ["a", "b", "c"]
