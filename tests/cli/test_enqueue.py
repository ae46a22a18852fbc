"""`conquiet enqueue`."""

from __future__ import annotations

import json

from conquiet.mq import MqAdmin, Topics


def entries(client, stream):
    return [json.loads(fields[b"data"]) for _, fields in client.xrange(stream)]


def test_a_payload_becomes_a_message_of_a_stream_without_a_group(run_on_each, stream, client):
    ran = run_on_each("enqueue", stream, '{"n": 1, "city": "Łódź"}', "--json")

    assert ran.code == 0
    assert ran.json == {"name": stream, "kind": "stream", "enqueued": 1, "ids": ran.json["ids"]}
    assert entries(client, stream) == [{"n": 1, "city": "Łódź"}]
    assert client.xinfo_groups(stream) == []


def test_lines_of_stdin_and_of_a_file_become_messages_in_order(run, stream, valkey, tmp_path):
    (tmp_path / "more.jsonl").write_text('{"n": 3}\n\n{"n": 4}\n')

    assert run("enqueue", stream, typed='{"n": 1}\n{"n": 2}\n').code == 0
    assert run("enqueue", stream, "--file", "more.jsonl").code == 0
    assert run("enqueue", stream, "--file", "-", typed='{"n": 5}').code == 0

    assert [entry["n"] for entry in entries(valkey, stream)] == [1, 2, 3, 4, 5]


def test_one_bad_line_is_named_and_nothing_is_added(run, stream, valkey):
    ran = run("enqueue", stream, typed='{"n": 1}\n[2]\n')

    assert ran.code == 2
    assert "Line 2 of stdin is not a message" in ran.err
    assert not valkey.exists(stream)


def test_a_dedupe_id_adds_once(run, stream, topic, valkey):
    run("topics", "create", topic)
    for name in (stream, topic):
        first = run("enqueue", name, "--dedupe-id", "load-1", "--json", typed='{"n": 1}\n{"n": 2}\n').json
        second = run("enqueue", name, "--dedupe-id", "load-1", "--json", typed='{"n": 1}\n{"n": 2}\n').json

        assert first["ids"] == second["ids"]
        assert MqAdmin(valkey).topic(name).length == 2


def test_a_topic_takes_key_headers_partition_and_delay(run, topic, valkey):
    run("topics", "create", topic, "--partitions", "4")
    run("enqueue", topic, '{"n": 1}', "--key", "anna", "--header", "trace=7", "--header", "tenant=a=b")
    run("enqueue", topic, '{"n": 2, "customer": 12}', "--key-field", "customer", "--partition", "3")
    delayed = run("enqueue", topic, '{"n": 3}', "--delay", "1h", "--json").json["ids"][0]

    keys = Topics(valkey).open(topic).keys
    found = [entry for partition in range(4) for entry in entries(valkey, keys.stream(partition))]
    assert {entry["key"]: entry["headers"] for entry in found} == {
        "anna": {"trace": "7", "tenant": "a=b"},
        "12": {},
    }
    assert "12" in [entry["key"] for entry in entries(valkey, keys.stream(3))]
    assert valkey.zscore(keys.delayed(0), delayed) is not None


def test_options_of_topics_are_refused_for_a_stream(run, stream, valkey):
    ran = run("enqueue", stream, '{"n": 1}', "--key", "anna")

    assert ran.code == 2
    assert "is not a topic" in ran.err
    assert not valkey.exists(stream)


def test_what_is_no_payload_is_refused_with_its_reason(run, stream):
    for payload in ("{", "[1]", "7", '{"n": NaN}'):
        ran = run("enqueue", stream, payload)

        assert ran.code == 2
        assert "The payload is not a message" in ran.err
    assert run("enqueue", stream, '{"n": 1}', "--file", "x").code == 2
    assert "cannot be read" in run("enqueue", stream, "--file", "missing.jsonl").err
