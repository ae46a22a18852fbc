"""A topic as the target of a write: envelopes, and the partition of each row by its key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conquiet.errors import TopicError
from conquiet.mq import ConsistentHashPartitioner, HashPartitioner, Topic
from conquiet.spark.options import WriteOptions
from conquiet.spark.scripts import Hashes
from conquiet.spark.wire.envelope_encoder import EnvelopeEncoder, json_headers, json_keys, with_headers
from conquiet.spark.write.row_hashes import hash_rows
from conquiet.spark.write.targets import StreamRows, column_of, payloads_of, utf8_of

_PARTITIONERS: dict[str, type[HashPartitioner | ConsistentHashPartitioner]] = {
    "hash": HashPartitioner,
    "consistent_hash": ConsistentHashPartitioner,
}


class TopicTarget:
    """Divides rows by partition; keys keep the partition that `Producer` gives them."""

    def __init__(self, topic: Topic, options: WriteOptions) -> None:
        self._topic = topic
        self._dedupe_column = options.dedupe_column
        self._trace_headers = options.trace_headers
        self._count = topic.partition_count
        self.streams = [topic.keys.stream(partition) for partition in topic.partitions]
        self._encoders = [EnvelopeEncoder(topic.name, partition) for partition in topic.partitions]
        partitioner = _PARTITIONERS[options.partitioner]()
        self._partition_for = lru_cache(maxsize=100_000)(partitioner.partition_for)

    def rows_by_stream(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """The rows of each partition that has some."""
        data, keys = payloads_of(batch), column_of(batch, "key", pa.string())
        keys = pa.nulls(len(data), pa.string()) if keys is None else utf8_of(keys, "key")
        encoded_keys, headers = json_keys(keys), _headers_of(batch)
        ids = column_of(batch, self._dedupe_column)
        # Three JSON texts in a row: no two different rows have the same text.
        hashes = hash_rows(pc.binary_join_element_wise(encoded_keys, headers, data, ""))
        # Ids are known within a partition on a cluster: rows of one id keep to one, whatever else they say.
        by = hashes if ids is None else hash_rows(ids.cast(pa.string()).fill_null(""))
        partitions = self._partitions_of(batch, keys, by)
        # After the hashes: a write that is run again in another trace knows its rows all the same.
        headers = with_headers(headers, self._trace_headers)
        for partition in np.unique(partitions):
            rows = pa.array(np.flatnonzero(partitions == partition))
            entries = self._encoders[partition].encode(
                data.take(rows), encoded_keys.take(rows), headers.take(rows)
            )
            some_ids = None if ids is None else ids.take(rows)
            yield StreamRows(self.streams[partition], entries, hashes[rows.to_numpy()], some_ids)

    def dedupe_keys(self, stream: str) -> list[str]:
        """Those that `Producer` uses."""
        partition = self.streams.index(stream)
        return [self._topic.keys.deduped(partition), self._topic.keys.deduped_until(partition)]

    def spread_over(self, count: int) -> None:
        """Give rows the partitions that they had when the topic had fewer.

        Raises:
            TopicError: it has more by now than this task knows of.
        """
        if count > len(self.streams):
            raise TopicError(self._topic.name, f"has grown to {count} partitions; the task must begin anew")
        self._count = count

    def _partitions_of(
        self, batch: pa.RecordBatch, keys: pa.StringArray, hashes: Hashes
    ) -> NDArray[np.int64]:
        count = self._count
        # Rows without a key are spread by a hash: every attempt of a task gives the same answer.
        partitions: Any = (hashes % np.uint64(count)).astype(np.int64)
        if keys.null_count < len(keys):
            encoded = keys.dictionary_encode()
            of_keys = np.array([self._partition_for(key, count) for key in encoded.dictionary.to_pylist()])
            chosen = of_keys[encoded.indices.fill_null(0).to_numpy()]
            partitions = np.where(keys.is_null().to_numpy(zero_copy_only=False), partitions, chosen)
        given = column_of(batch, "partition", pa.int64())
        if given is not None and given.null_count < len(given):
            is_given = given.is_valid().to_numpy(zero_copy_only=False)
            partitions = np.where(is_given, given.fill_null(0).to_numpy(), partitions)
            last = len(self.streams) - 1
            for wrong in partitions[(partitions < 0) | (partitions > last)][:1]:
                raise TopicError(self._topic.name, f"has no partition {wrong}, only 0 to {last}")
        return partitions  # type: ignore[no-any-return]


def _headers_of(batch: pa.RecordBatch) -> pa.StringArray:
    try:
        return json_headers(column_of(batch, "headers"), batch.num_rows)
    except UnicodeDecodeError as error:
        raise ValueError(f"headers must be UTF-8: {error}") from error
