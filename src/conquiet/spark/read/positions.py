"""Where a read begins and ends: one position for all streams, or one for each topic, stream or partition."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from conquiet.errors import QueueError
from conquiet.queue.backlog import as_mapping
from conquiet.queue.connection import Client, run_command
from conquiet.spark.entry_ids import HIGHEST, LOWEST, ZERO, EntryId, first_id_of, last_id_of
from conquiet.spark.read.offsets import Offset
from conquiet.spark.read.sources import Source
from conquiet.spark.read.stream_info import StreamInfo, read_info

_GROUP_PREFIX = "group:"


class NoGroupError(QueueError):
    """A read is to begin where a group is that the stream does not have."""

    def __init__(self, stream: str, group: str) -> None:
        super().__init__("start", stream=stream, group=group, reason="the stream has no such group")


#: In a JSON object: all that it does not name.
_OTHERS = "*"


class Positions:
    """What an option says for each stream."""

    def __init__(self, option: str, text: str | None, default: str) -> None:
        self._option = option
        self._default = default
        self._by_name: dict[str, Any] = {_OTHERS: default if text is None else text}
        if text is not None and text.lstrip().startswith("{"):
            self._by_name = self._parse(text)
        for value in self._by_name.values():
            for position in value.values() if isinstance(value, dict) else [value]:
                self._check(position)

    def of(self, source: Source, *, is_only: bool) -> str:
        """The position of one stream.

        Args:
            is_only: a single topic or stream is read, whose partitions are named by their number alone.
        """
        partition = str(source.partition)
        found = self._by_name.get(source.place)
        if found is None and is_only:
            found = self._by_name.get(partition)
        if isinstance(found, dict):
            found = found.get(partition, found.get(_OTHERS))
        if found is None:
            found = self._by_name.get(_OTHERS, self._default)
        return str(found)

    def check_names(self, sources: Collection[Source], *, is_only: bool) -> None:
        """Refuse a position of something that is not read.

        Raises:
            ValueError: with its name.
        """
        known = {_OTHERS} | {source.place for source in sources}
        if is_only:
            known |= {str(source.partition) for source in sources}
        unknown = sorted(self._by_name.keys() - known)
        for name, value in self._by_name.items():
            partitions = {str(source.partition) for source in sources if source.place == name}
            if isinstance(value, dict) and name not in unknown:
                unknown += [f"partition {one} of {name}" for one in value.keys() - partitions - {_OTHERS}]
        if unknown:
            raise ValueError(f"{self._option} names {', '.join(unknown)}, which is not read here")

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self._option} is not JSON: {error}") from None
        return parsed

    def _check(self, position: object) -> None:
        if not isinstance(position, str):
            raise TypeError(f"{self._option} must have a text for each partition, got {position!r}")
        if position != self._default and position not in ("earliest", "latest"):
            name = position.removeprefix(_GROUP_PREFIX)
            if name == position:
                first_id_of(self._option, position)
            elif not name:
                raise ValueError(f"{self._option} must name a group behind group:")


def is_of_group(position: str) -> bool:
    """Whether a group says where it is."""
    return position.startswith(_GROUP_PREFIX)


def offset_at(client: Client, stream: str, start: str) -> Offset:
    """Where a streaming query begins."""
    info = read_info(client, stream)
    if start == "latest":
        return Offset(info.last_generated, info.entries_added)
    if start == "earliest":
        return Offset(ZERO, info.removed)
    if is_of_group(start):
        return _offset_of_group(client, stream, start.removeprefix(_GROUP_PREFIX), info)
    before = first_id_of("start", start).previous()
    return Offset(before, info.added_up_to(before))


def first_id_at(client: Client, stream: str, start: str) -> EntryId:
    """The first id that a batch read may have."""
    if start == "earliest":
        return LOWEST
    if start == "latest" or is_of_group(start):
        return offset_at(client, stream, start).last.next()
    return max(LOWEST, first_id_of("start", start))


def last_id_at(client: Client, stream: str, end: str) -> EntryId:
    """The last id that a batch read may have."""
    if end == "latest":
        return HIGHEST
    if end == "earliest":
        return ZERO
    return offset_at(client, stream, end).last if is_of_group(end) else last_id_of("end", end)


def _offset_of_group(client: Client, stream: str, name: str, info: StreamInfo) -> Offset:
    groups = run_command(client, "XINFO GROUPS", stream.encode(), stream=stream, group=name)
    for group in map(as_mapping, groups):
        if group["name"] == name.encode():
            last, added = EntryId.parse(group["last-delivered-id"]), group.get("entries-read")
            is_cut_off = info.removed and (info.first is None or info.first > last)
            if added is None and (last == info.last_generated or not is_cut_off):
                # Of a group that trimming has passed, it is not known how many entries it has missed.
                added = info.added_up_to(last)
            return Offset(last, added)
    raise NoGroupError(stream, name)
