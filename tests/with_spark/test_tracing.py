"""The driver's trace: in the headers of every message that Spark writes, and nowhere while it is off."""

from __future__ import annotations

import json

import pyarrow as pa

from conquiet import DrainLimits
from conquiet.mq import drain_partition
from conquiet.spark import publish
from conquiet.spark.wire.envelope_encoder import json_headers, with_headers
from tests.spans import id_of, parent_of, traceparent_of
from tests.with_spark.job_runs import envelopes, run_here
from tests.with_spark.server_side import envelopes_in


def test_a_drain_goes_on_with_the_trace_of_the_driver_that_published(spark, topic, valkey, valkey_url, spans):
    publish(
        spark.createDataFrame([(n, f"key-{n}") for n in range(6)], "n int, k string"),
        url=valkey_url,
        topic=topic.name,
        key="k",
        headers={"tenant": "a"},
    )
    for partition in topic.partitions:
        drain_partition(
            topic, partition, "billing", lambda _msg: None, limits=DrainLimits(max_messages=10, idle_ms=20)
        )

    send, processed = spans.one("send"), spans.all("process")
    assert {json.dumps(envelope["headers"]) for envelope in envelopes_in(valkey, topic)} == {
        json.dumps({"tenant": "a", "traceparent": traceparent_of(send)})
    }
    assert [parent_of(span) for span in processed] == [id_of(send)] * 6


def test_a_write_that_is_run_again_in_another_trace_adds_nothing_twice(spark, topic, write, valkey):
    rows = spark.createDataFrame([('{"n":1}',), ('{"n":2}',)], "data string").coalesce(1)
    for trace in ("1", "2"):
        traceparent = f"00-{trace * 32}-{trace * 16}-01"
        write(
            rows, topic=topic.name, dedupeId=f"once-{topic.name}", traceparent=traceparent, tracestate="a=b"
        )

    found = envelopes_in(valkey, topic)
    assert sorted(envelope["payload"]["n"] for envelope in found) == [1, 2]
    carried = {"traceparent": f"00-{'1' * 32}-{'1' * 16}-01", "tracestate": "a=b"}
    assert [envelope["headers"] for envelope in found] == [carried] * 2


def test_headers_that_are_there_are_kept_and_a_column_without_more_is_the_same_object():
    headers = json_headers(pa.array([[("a", "ü")], None], pa.map_(pa.string(), pa.string())), 2)

    assert with_headers(headers, {}) is headers
    assert with_headers(headers, {"b": "1"}).to_pylist() == ['{"a":"ü","b":"1"}', '{"b":"1"}']


def test_a_job_writes_the_context_that_its_command_line_names(spark, topic, capsys, monkeypatch, valkey_url):
    monkeypatch.setenv("CONQUIET_REDIS_URL", valkey_url)
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"

    query = {"query": "SELECT 1 AS n", "to_topic": topic.name, "header": "tenant=a"}
    ran = run_here(capsys, "publish", **query, traceparent=traceparent)

    assert ran.code == 0
    assert [envelope["headers"] for envelope in envelopes(topic)] == [
        {"tenant": "a", "traceparent": traceparent}
    ]
