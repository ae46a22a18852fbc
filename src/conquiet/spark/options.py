"""The options of the data source, checked once, with every mistake named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from conquiet.arguments import check_name, check_positive_int

#: Spark's own, handed over beside ours.
_OF_SPARK = frozenset(("path", "checkpointlocation", "queryname"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where entries are: a server, and a stream or a topic."""

    url: str
    stream: str | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        check_name("url", self.url)
        if (self.stream is None) == (self.topic is None):
            raise ValueError(
                f"either stream or topic must be given, got stream={self.stream!r} and topic={self.topic!r}"
            )
        check_name("stream" if self.stream is not None else "topic", self.stream or self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is read, and how it is divided."""

    place: Place
    start: str | None = None
    end: str | None = None
    #: About so many entries for one task.
    rows_per_split: int = 250_000
    malformed: Literal["fail", "keep"] = "fail"
    fail_on_data_loss: bool = True
    #: At most so many entries in one micro-batch; of all of a topic's partitions together.
    max_offsets_per_trigger: int | None = None
    #: A group that is moved along with the query, so that its lag can be seen.
    commit_group: str | None = None

    def __post_init__(self) -> None:
        check_positive_int("rowsPerSplit", self.rows_per_split)
        _check_one_of("malformed", self.malformed, ("fail", "keep"))
        if self.max_offsets_per_trigger is not None:
            check_positive_int("maxOffsetsPerTrigger", self.max_offsets_per_trigger)
        if self.commit_group is not None:
            check_name("commitGroup", self.commit_group)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read Spark's options; their names are not case-sensitive."""
        return cls(
            **_fields(
                options,
                {
                    "start": ("start", str),
                    "end": ("end", str),
                    "rowsPerSplit": ("rows_per_split", _int),
                    "malformed": ("malformed", str),
                    "failOnDataLoss": ("fail_on_data_loss", _bool),
                    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _int),
                    "commitGroup": ("commit_group", str),
                },
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows go, and how a row is known that was written before."""

    place: Place
    #: "rows": what an earlier attempt of the same task added is not added again. "off": plain adding.
    dedupe: Literal["rows", "off"] = "rows"
    #: The name of this write; the same name in another run goes on where the first one failed.
    dedupe_id: str | None = None
    #: A column of ids, looked for among all that were added within the window, as `Producer` does.
    dedupe_column: str | None = None
    dedupe_window_ms: int = 24 * 3_600_000
    partitioner: Literal["hash", "consistent_hash"] = "hash"
    #: The W3C context that the messages of a topic carry among their headers.
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def carried(self) -> dict[str, str]:
        """What every message has among its headers."""
        found = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return {name: value for name, value in found.items() if value}

    def __post_init__(self) -> None:
        _check_one_of("dedupe", self.dedupe, ("rows", "off"))
        _check_one_of("partitioner", self.partitioner, ("hash", "consistent_hash"))
        check_positive_int("dedupeWindowMs", self.dedupe_window_ms)
        for name, value in (("dedupeId", self.dedupe_id), ("dedupeColumn", self.dedupe_column)):
            if value is not None:
                check_name(name, value)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read Spark's options; their names are not case-sensitive."""
        return cls(
            **_fields(
                options,
                {
                    "dedupe": ("dedupe", str),
                    "dedupeId": ("dedupe_id", str),
                    "dedupeColumn": ("dedupe_column", str),
                    "dedupeWindowMs": ("dedupe_window_ms", _int),
                    "partitioner": ("partitioner", str),
                    "traceparent": ("traceparent", str),
                    "tracestate": ("tracestate", str),
                },
            )
        )


def _fields(
    options: Mapping[str, str], known: Mapping[str, tuple[str, Callable[[str, str], Any] | type[str]]]
) -> dict[str, Any]:
    given = {name.lower(): value for name, value in options.items()}
    place = Place(url=given.pop("url", ""), stream=given.pop("stream", None), topic=given.pop("topic", None))
    fields: dict[str, Any] = {"place": place}
    for name, (field, read) in known.items():
        if name.lower() in given:
            text = given.pop(name.lower())
            fields[field] = text if read is str else cast(Callable[[str, str], Any], read)(name, text)
    unknown = sorted(given.keys() - _OF_SPARK)
    if unknown:
        names = ", ".join(["url", "stream", "topic", *known])
        raise ValueError(f"redis-stream has no option {', '.join(unknown)} here, only {names}")
    return fields


def _int(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r}") from None


def _bool(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, got {text!r}")
    return text.lower() == "true"


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
