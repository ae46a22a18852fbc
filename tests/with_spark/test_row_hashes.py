"""Hashes of rows: the same for the same text wherever it stands, different for different texts."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from conquiet.spark.columns import HEADERS
from conquiet.spark.options import WriteOptions
from conquiet.spark.write.row_hashes import hash_rows
from conquiet.spark.write.topic_target import TopicTarget

TEXTS = st.lists(st.text(max_size=60) | st.integers(0, 9_000).map(lambda n: "y" * n), max_size=30)


@given(TEXTS, st.integers(0, 5))
def test_a_texts_hash_depends_on_nothing_but_the_text(texts, skipped):
    together = hash_rows(pa.array([*["before"] * skipped, *texts], pa.string()).slice(skipped))

    alone = [int(hash_rows(pa.array([text], pa.string()))[0]) for text in texts]

    assert together.tolist() == alone


@given(TEXTS)
def test_different_texts_have_different_hashes(texts):
    hashes = hash_rows(pa.array(texts, pa.string())).tolist()

    assert len(set(hashes)) == len(set(texts))


def test_a_million_rows_that_differ_in_few_places_have_different_hashes():
    texts = pa.array(
        [f'{{"number":{number},"pad":"{"x" * 40}","again":{number % 10}}}' for number in range(10**6)]
    )

    hashes = hash_rows(texts)

    assert len(set(hashes.tolist())) == 10**6


def test_readable_texts_whose_words_differ_alike_have_different_hashes():
    texts = pa.array(['{"id":"aaaa7baar0000000000000"}', '{"id":"baaa_caa_0000000000000"}'])

    first, second = hash_rows(texts).tolist()

    assert first != second


def test_each_bit_of_a_text_reaches_every_bit_of_its_hash():
    rows, width = 2_000, 24
    texts = np.random.default_rng(1).integers(0, 128, (rows, width), dtype=np.uint8)
    hashes = hash_rows(_as_texts(texts))

    for place, bit in itertools.product(range(width), range(7)):
        changed = texts.copy()
        changed[:, place] ^= 1 << bit
        flipped = np.unpackbits((hashes ^ hash_rows(_as_texts(changed))).view(np.uint8)).reshape(rows, 64)
        shares = flipped.mean(axis=0)
        assert 0.4 < shares.min() <= shares.max() < 0.6, (place, bit)


def _as_texts(characters: np.ndarray) -> pa.StringArray:
    return pa.array([row.tobytes().decode("ascii") for row in characters], pa.string())


def test_another_process_computes_the_same_hashes():
    program = (
        "import pyarrow as pa; from conquiet.spark.write.row_hashes import hash_rows;"
        "print(hash_rows(pa.array(['{\"a\":1}', '', 'x' * 5000])).tolist())"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )

    here = hash_rows(pa.array(['{"a":1}', "", "x" * 5_000])).tolist()

    assert elsewhere.stdout.strip() == str(here)


def test_rows_that_differ_in_key_or_headers_alone_have_different_hashes(topic, valkey_url):
    keys = [None, "null", '"null"', "", "a", "a"]
    headers = [None, None, None, None, None, {"a": "1"}]
    columns = [
        pa.array(["{}"] * 6),
        pa.array(keys, pa.string()),
        pa.array([None if some is None else list(some.items()) for some in headers], HEADERS),
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=["data", "key", "headers"])
    target = TopicTarget(topic, WriteOptions.of({"url": valkey_url, "topic": topic.name}))

    hashes = [value for rows in target.rows_by_stream(batch) for value in rows.hashes.tolist()]

    assert len(hashes) == len(set(hashes)) == 6
