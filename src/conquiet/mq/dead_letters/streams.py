"""Where a topic's dead letters lie: one stream, on a cluster one per partition, read as if they were one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge

from conquiet.errors import TopicError
from conquiet.mq.dead_letters.record import DeadLetterRecord
from conquiet.mq.positions import Position
from conquiet.mq.topics import Topic

#: Letters carry payloads and tracebacks, and every partition has a page in hand.
_PAGE = 50

_Entries = list[tuple[bytes, dict[bytes, bytes]]]


class DeadLetterStreams:
    """Reads letters in the order of time, page by page, and removes them by id; made for one thread."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._is_per_partition = topic.layout == "hash_tagged"
        places = topic.partitions if self._is_per_partition else range(1)
        self._streams = {place: topic.keys.dead_letters(place) for place in places}

    def count(self) -> int:
        """How many letters there are."""
        return sum(self.topic.call("XLEN", stream) for stream in self._streams.values())

    def find(self, letter_id: str) -> DeadLetterRecord | None:
        """The letter, `None` if it is not there.

        Raises:
            TopicError: an id without partition names letters of several partitions.
        """
        position = Position.parse(letter_id)
        places = set(self._streams)
        if position.partition is not None:
            places &= {position.partition}
        found = [
            self._record(place, entry_id, fields)
            for place in sorted(places)
            for entry_id, fields in self._range(place, position.entry_id, position.entry_id)
        ]
        if len(found) > 1:
            ids = " or ".join(letter.id for letter in found)
            raise TopicError(self.topic.name, f"has several dead letters {letter_id}: say {ids}")
        return found[0] if found else None

    def between(
        self, since_ms: int, ends: str | Mapping[int, str], *, after: Position | None = None
    ) -> Iterator[DeadLetterRecord]:
        """The letters from a time, or from behind a position, to the end of each stream's interval."""
        streams = []
        for place in self._streams:
            end = ends if isinstance(ends, str) else ends.get(place)
            is_behind = after is not None and after.ms >= since_ms
            start = after.start_in(place) if after is not None and is_behind else f"{since_ms}-0"
            if end is not None:
                streams.append(self._of_stream(place, start, end))
        return (letter for _, letter in merge(*streams, key=lambda pair: pair[0]))

    def last_ids(self, end: str) -> dict[int, str]:
        """The last letter of each stream that is not behind `end`."""
        found = {}
        for place, stream in self._streams.items():
            entries = self.topic.call("XREVRANGE", stream, end, "-", "COUNT", 1)
            if entries:
                found[place] = entries[0][0].decode()
        return found

    def delete(self, letter: DeadLetterRecord) -> int:
        """Delete the letter; 0 if it was gone before."""
        deleted: int = self.topic.call("XDEL", *self.place_of(letter))
        return deleted

    def delete_before(self, ms: int) -> int:
        """Delete all letters from before a time."""
        command = ("MINID", "=", f"{ms}-0")
        return sum(self.topic.call("XTRIM", stream, *command) for stream in self._streams.values())

    def _of_stream(self, place: int, start: str, end: str) -> Iterator[tuple[Position, DeadLetterRecord]]:
        while True:
            entries = self._range(place, start, end)
            for entry_id, fields in entries:
                yield Position.of(entry_id, place), self._record(place, entry_id, fields)
            if len(entries) < _PAGE:
                return
            start = f"({entries[-1][0].decode()}"

    def _range(self, place: int, start: str, end: str) -> _Entries:
        found: _Entries = self.topic.call("XRANGE", self._streams[place], start, end, "COUNT", _PAGE)
        return found

    def _record(self, place: int, entry_id: bytes, fields: Mapping[bytes, bytes]) -> DeadLetterRecord:
        plain_id = entry_id.decode()
        return DeadLetterRecord.read(
            fields,
            letter_id=f"{plain_id}@{place}" if self._is_per_partition else plain_id,
            topic=self.topic.name,
            partition=place if self._is_per_partition else None,
        )

    def place_of(self, letter: DeadLetterRecord) -> tuple[str, str]:
        """The stream of the letter, and its id there."""
        position = Position.parse(letter.id)
        return self._streams[position.partition or 0], position.entry_id
