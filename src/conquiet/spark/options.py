"""The options of the data source, checked once, with every mistake named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from conquiet.arguments import check_name, check_non_negative_int, check_positive_int
from conquiet.queue.replicas import ReplicaWait
from conquiet.spark.address import StreamAddress
from conquiet.spark.entry_ids import first_id_of

#: Spark's own, handed over beside ours.
_OF_SPARK = frozenset(("path", "checkpointlocation", "queryname"))

_PLACES = ("stream", "topic", "streams", "topics", "streamPattern", "topicPattern")

_Options = TypeVar("_Options", bound="ReadOptions | WriteOptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is read, and how it is divided."""

    address: StreamAddress
    #: An entry id, milliseconds since 1970, an ISO 8601 time, "earliest" or "latest"; streaming also
    #: "group:NAME". Batches begin at the earliest entry, streaming queries at the latest.
    start: str | None = None
    #: As `start`; included. Batch only.
    end: str | None = None
    #: The fields of entries as columns: "*", or their names and types. Without it the field `data`.
    fields: str | None = None
    #: About so many entries for one task.
    rows_per_split: int = 250_000
    #: About so many tasks at least, if there are as many entries.
    min_partitions: int = 1
    #: "fail", or "keep": a malformed entry becomes a row with null as `data` and headers that say why.
    malformed: Literal["fail", "keep"] = "fail"
    #: Entries that were trimmed before they were read fail the query, with the ids around the gap.
    fail_on_data_loss: bool = True
    #: At most so many entries in one micro-batch; of all of a topic's partitions together.
    max_offsets_per_trigger: int | None = None
    #: A micro-batch waits for so many entries, but no longer than `max_trigger_delay_ms`.
    min_offsets_per_trigger: int | None = None
    #: How long it waits for them.
    max_trigger_delay_ms: int = 900_000
    #: How often the server's keys are searched for new streams that match `streamPattern`.
    discovery_interval_ms: int = 30_000
    #: A group that is moved along with the query, so that its lag can be seen.
    commit_group: str | None = None
    #: How long an outage of the server may last before it fails a task or the query.
    retry_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        if not self.address.given:
            raise self.address.must_be_given()
        check_positive_int("rowsPerSplit", self.rows_per_split)
        check_positive_int("minPartitions", self.min_partitions)
        check_non_negative_int("maxTriggerDelayMs", self.max_trigger_delay_ms)
        check_non_negative_int("discoveryIntervalMs", self.discovery_interval_ms)
        if self.fields is not None and self.address.is_of_topics:
            raise ValueError("fields is for streams: messages of a topic are JSON, which `unpack` reads")
        check_non_negative_int("retryTimeoutMs", self.retry_timeout_ms)
        _check_one_of("malformed", self.malformed, ("fail", "keep"))
        if self.max_offsets_per_trigger is not None:
            check_positive_int("maxOffsetsPerTrigger", self.max_offsets_per_trigger)
        if self.min_offsets_per_trigger is not None:
            check_positive_int("minOffsetsPerTrigger", self.min_offsets_per_trigger)
            if self.min_offsets_per_trigger > (self.max_offsets_per_trigger or self.min_offsets_per_trigger):
                raise ValueError("minOffsetsPerTrigger must not be above maxOffsetsPerTrigger")
        if self.commit_group is not None:
            check_name("commitGroup", self.commit_group)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read Spark's options; their names are not case-sensitive."""
        return _parse(cls, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows go, and how a row is recognised that was written before."""

    #: Without a stream or topic each row names its topic in the column `topic`.
    address: StreamAddress
    #: Columns that become fields of entries: "*", or their names. Without it the field `data`.
    fields: str | None = None
    #: Streams are trimmed to about so many entries.
    max_len: int | None = None
    #: Streams are trimmed to the entries from this id or time on.
    min_id: str | None = None
    #: "rows": what an earlier attempt of the same task added is not added again. "off": plain adding.
    dedupe: Literal["rows", "off"] = "rows"
    #: The name of this write; the same name in another run goes on where the first one failed.
    dedupe_id: str | None = None
    #: A column of ids: a row is not added if its id was within the window, as `Producer` does it.
    dedupe_column: str | None = None
    #: How long the ids or hashes of rows are kept.
    dedupe_window_ms: int = 24 * 3_600_000
    #: That of the topic's other producers.
    partitioner: Literal["hash", "consistent_hash"] = "hash"
    #: A task fails, and is tried again by Spark, unless so many replicas have its rows in time.
    min_replicas: int = 0
    #: How long a task waits for the replicas.
    replica_timeout_ms: int = 1_000
    #: The W3C context that the messages of a topic carry among their headers.
    traceparent: str | None = None
    #: The second part of that context.
    tracestate: str | None = None
    #: Rows become tasks: what stands around their ids and arguments, as `publish_tasks` gives it.
    task_envelope: str | None = None
    #: The largest envelope of such a task.
    task_max_bytes: int = 1 << 20
    #: How long an outage of the server, or its memory being full, may last before it fails a task.
    retry_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.address.is_of_several and self.address.given:
            raise ValueError(
                "rows are written to a stream or a topic, or each to the topic in its column `topic`"
            )
        self._check_of_streams()
        _check_one_of("dedupe", self.dedupe, ("rows", "off"))
        _check_one_of("partitioner", self.partitioner, ("hash", "consistent_hash"))
        check_positive_int("dedupeWindowMs", self.dedupe_window_ms)
        check_non_negative_int("retryTimeoutMs", self.retry_timeout_ms)
        if self.task_envelope is not None and self.dedupe_column is not None:
            raise ValueError("a task is known by its row: give no dedupeColumn")
        ReplicaWait(self.min_replicas, self.replica_timeout_ms)
        for name, value in (("dedupeId", self.dedupe_id), ("dedupeColumn", self.dedupe_column)):
            if value is not None:
                check_name(name, value)

    def _check_of_streams(self) -> None:
        for name, value in (("fields", self.fields), ("maxLen", self.max_len), ("minId", self.min_id)):
            if value is not None and self.address.stream is None:
                raise ValueError(f"{name} is for streams; a topic has messages with envelopes, and policies")
        if self.fields is not None and (self.dedupe == "off" or self.task_envelope is not None):
            raise ValueError("entries of fields are added once each: give neither dedupe=off nor a task")
        if self.max_len is not None:
            check_positive_int("maxLen", self.max_len)
        if self.min_id is not None:
            first_id_of("minId", self.min_id)
        if self.max_len is not None and self.min_id is not None:
            raise ValueError("give maxLen or minId, not both")

    @property
    def trace_headers(self) -> dict[str, str]:
        """What every message has among its headers."""
        headers = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return {name: value for name, value in headers.items() if value}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read Spark's options; their names are not case-sensitive."""
        return _parse(cls, options)


def _parse(kind: type[_Options], options: Mapping[str, str]) -> _Options:
    given = {name.lower(): value for name, value in options.items()}
    address = StreamAddress(
        url=given.pop("url", ""),
        stream=given.pop("stream", None),
        topic=given.pop("topic", None),
        streams=_names(given.pop("streams", "")),
        topics=_names(given.pop("topics", "")),
        stream_pattern=given.pop("streampattern", None),
        topic_pattern=given.pop("topicpattern", None),
    )
    values: dict[str, Any] = {"address": address}
    names = ["url", *_PLACES[: 2 if kind is WriteOptions else None]]
    for field in fields(kind)[1:]:
        # rows_per_split is the option rowsPerSplit.
        name = re.sub("_(.)", lambda letter: letter[1].upper(), field.name)
        names.append(name)
        if name.lower() in given:
            values[field.name] = _read(name, str(field.type), given.pop(name.lower()))
    unknown = sorted(given.keys() - _OF_SPARK)
    if unknown:
        raise ValueError(f"redis-stream has no option {', '.join(unknown)} here, only {', '.join(names)}")
    return kind(**values)


def _names(text: str) -> tuple[str, ...]:
    """Names between commas, each once, in their order."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text.strip() else ()


def _read(name: str, kind: str, text: str) -> str | int | bool:
    if kind.startswith("int"):
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name} must be a whole number, got {text!r}") from None
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, got {text!r}")
        return text.lower() == "true"
    return text


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
