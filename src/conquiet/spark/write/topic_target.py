"""A topic as the target of a write: envelopes, and the partition of each row by its key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conquiet.errors import TopicError
from conquiet.mq import ConsistentHashPartitioner, HashPartitioner, Topic
from conquiet.spark.options import WriteOptions
from conquiet.spark.wire.envelope_encoder import Wrapper, json_headers, json_keys, with_headers
from conquiet.spark.write.row_hashes import Hashes, combine, hash_rows
from conquiet.spark.write.targets import Load, column_of, data_of

_PARTITIONERS: dict[str, type[HashPartitioner | ConsistentHashPartitioner]] = {
    "hash": HashPartitioner,
    "consistent_hash": ConsistentHashPartitioner,
}


class TopicTarget:
    """Sorts rows out by partition; keys keep the partition that `Producer` gives them."""

    def __init__(self, topic: Topic, options: WriteOptions) -> None:
        self._topic = topic
        self._names = options.dedupe_column
        self._carried = options.carried
        self._count = topic.partition_count
        self.streams = [topic.keys.stream(partition) for partition in topic.partitions]
        self._wrappers = [Wrapper(topic.name, partition) for partition in topic.partitions]
        partitioner = _PARTITIONERS[options.partitioner]()
        self._partition_for = lru_cache(maxsize=100_000)(partitioner.partition_for)

    def loads(self, batch: pa.RecordBatch) -> Iterator[Load]:
        """The rows of each partition that has some."""
        data = data_of(batch)
        keys = column_of(batch, "key", pa.string()) or pa.nulls(len(data), pa.string())
        headers = json_headers(column_of(batch, "headers"), len(data))
        names = column_of(batch, self._names)
        hashes = combine(hash_rows(data), hash_rows(keys), hash_rows(headers))
        places = self._partitions(batch, keys, hashes)
        json_of_keys = json_keys(keys)
        # After the hashes: a write that is run again in another trace knows its rows all the same.
        headers = with_headers(headers, self._carried)
        for partition in np.unique(places):
            rows = pa.array(np.flatnonzero(places == partition))
            wrapped = self._wrappers[partition].wrap(
                data.take(rows), json_of_keys.take(rows), headers.take(rows)
            )
            yield Load(
                self.streams[partition],
                wrapped,
                hashes[rows.to_numpy()],
                None if names is None else names.take(rows),
            )

    def dedupe_keys(self, stream: str) -> list[str]:
        """Where dedupe ids are kept: the place where `Producer` looks too."""
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

    def _partitions(self, batch: pa.RecordBatch, keys: pa.StringArray, hashes: Hashes) -> NDArray[np.int64]:
        count = self._count
        # Rows without a key are spread by what they say: every attempt of a task gives the same answer.
        places: Any = (hashes % np.uint64(count)).astype(np.int64)
        if keys.null_count < len(keys):
            encoded = keys.dictionary_encode()
            of_keys = np.array([self._partition_for(key, count) for key in encoded.dictionary.to_pylist()])
            chosen = encoded.indices.fill_null(0).to_numpy()
            places = np.where(keys.is_null().to_numpy(zero_copy_only=False), places, of_keys[chosen])
        given = column_of(batch, "partition", pa.int64())
        if given is not None and given.null_count < len(given):
            is_given = given.is_valid().to_numpy(zero_copy_only=False)
            places = np.where(is_given, given.fill_null(0).to_numpy(), places)
            last = len(self.streams) - 1
            for wrong in places[(places < 0) | (places > last)][:1]:
                raise TopicError(self._topic.name, f"has no partition {wrong}, only 0 to {last}")
        return places  # type: ignore[no-any-return]
