"""The streams of a topic's dead letters: one, on a cluster one per partition, read as if they were one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge

from conquiet.errors import TopicError
from conquiet.mq import scripts
from conquiet.mq.dead_letters.record import DeadLetterRecord
from conquiet.mq.policies import DeadLetterPolicy
from conquiet.mq.positions import Position
from conquiet.mq.scripts import LetterAddress
from conquiet.mq.topics import Topic
from conquiet.queue.message import pairs_of
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import run_steps

#: At most: letters carry payloads and tracebacks, and every partition has a page in memory.
_PAGE = 50
#: Letters that one script deletes: the server reads them for it, and does nothing else meanwhile.
_TRIMMED_AT_ONCE = 100
_MAX_COUNTED = 10_000


class DeadLetterStreams:
    """Reads letters in the order of time, page by page, and removes them by id; made for one thread."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._is_per_partition = topic.layout == "hash_tagged"
        partitions = topic.partitions if self._is_per_partition else range(1)
        self._streams = {partition: topic.keys.dead_letters(partition) for partition in partitions}

    def count(self) -> int:
        return sum(self.topic.call("XLEN", stream) for stream in self._streams.values())

    def find(self, letter_id: str) -> DeadLetterRecord | None:
        """The letter, `None` if it is not there.

        Raises:
            TopicError: an id without partition names letters of several partitions.
        """
        position = Position.parse(letter_id)
        letters = [
            letter
            for partition in self._streams
            if position.partition in (None, partition)
            for _, letter in self._letters(partition, position.entry_id, position.entry_id)
        ]
        if len(letters) > 1:
            ids = " or ".join(letter.id for letter in letters)
            raise TopicError(self.topic.name, f"has several dead letters {letter_id}: give {ids}")
        return letters[0] if letters else None

    def newest(
        self, since_ms: int, end: str, *, before: Position | None = None
    ) -> Iterator[DeadLetterRecord]:
        """The letters up to an end, or before a position, back to a time: the newest first."""
        streams = []
        for partition in self._streams:
            last = end if before is None else before.end_in(partition)
            streams.append(self._letters(partition, f"{since_ms}-0", last, is_reverse=True))
        return (letter for _, letter in merge(*streams, key=lambda pair: pair[0], reverse=True))

    def between(
        self, since_ms: int, ends: str | Mapping[int, str], *, after: Position | None = None
    ) -> Iterator[DeadLetterRecord]:
        """The letters from a time, or from behind a position, to the end of each stream's interval."""
        streams = []
        for partition in self._streams:
            end = ends if isinstance(ends, str) else ends.get(partition)
            is_behind = after is not None and after.ms >= since_ms
            start = after.start_in(partition) if after is not None and is_behind else f"{since_ms}-0"
            if end is not None:
                streams.append(self._letters(partition, start, end))
        return (letter for _, letter in merge(*streams, key=lambda pair: pair[0]))

    def last_ids(self, end: str) -> dict[int, str]:
        """The last letter of each stream that is not behind `end`."""
        ids = {}
        for partition, stream in self._streams.items():
            entries = self.topic.call("XREVRANGE", stream, end, "-", "COUNT", 1)
            if entries:
                ids[partition] = entries[0][0].decode()
        return ids

    def delete(self, letter: DeadLetterRecord) -> int:
        """Delete the letter; 0 if it was not there any more."""
        deleted: int = self.topic.call("XDEL", *self.address_of(letter))
        return deleted

    def delete_before(self, ms: int) -> int:
        """Delete all letters from before a time."""
        command = ("MINID", "=", f"{ms}-0")
        return sum(self.topic.call("XTRIM", stream, *command) for stream in self._streams.values())

    @property
    def partitions(self) -> list[int]:
        """Those that have letters of their own; the first one, if they are the whole topic's."""
        return list(self._streams)

    def trim(
        self,
        policy: DeadLetterPolicy,
        partitions: Iterable[int],
        *,
        max_steps: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete what the policy does not keep, in bounded steps; with `dry_run` only count, up to 10,000.

        What a group of the letters' own stream has not finished is kept, too.
        """
        removed = 0
        for partition in partitions:
            steps, has_more = 0, True
            while has_more and steps != max_steps:
                number, has_more, _ = scripts.trim(
                    self.topic,
                    self._streams[partition],
                    (),
                    length=policy.retention_length,
                    age_ms=policy.retention_ms,
                    limit=_MAX_COUNTED if dry_run else _TRIMMED_AT_ONCE,
                    dry_run=dry_run,
                    without_groups=True,
                )
                removed, steps = removed + number, steps + 1
                has_more = has_more and not dry_run
        return removed

    def address_of(self, letter: DeadLetterRecord) -> LetterAddress:
        """The stream of the letter, and its id there."""
        position = Position.parse(letter.id)
        return LetterAddress(self._streams[position.partition or 0], position.entry_id)

    def _letters(
        self, partition: int, start: str, end: str, *, is_reverse: bool = False
    ) -> Iterator[tuple[Position, DeadLetterRecord]]:
        suffix, of_partition = (f"@{partition}", partition) if self._is_per_partition else ("", None)
        pages = EntryPages(self._streams[partition], first=start, last=end, newest_first=is_reverse)
        while not pages.is_end and (entries := run_steps(self.topic.call, pages.next(_PAGE))):
            for entry_id, fields in entries:
                letter_id = entry_id.decode() + suffix
                yield (
                    Position.of(entry_id, partition),
                    DeadLetterRecord.read(
                        dict(pairs_of(fields)),
                        letter_id=letter_id,
                        topic=self.topic.name,
                        partition=of_partition,
                    ),
                )
