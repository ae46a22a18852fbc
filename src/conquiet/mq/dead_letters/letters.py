"""DeadLetters: list the dead letters of a topic or stream, replay them once, or purge them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack

from conquiet.arguments import check_filter, check_non_negative_int, check_positive_int
from conquiet.errors import TopicError
from conquiet.mq.clock import server_ms
from conquiet.mq.dead_letters.record import DeadLetterRecord
from conquiet.mq.dead_letters.replay import Replay, ReplayReport
from conquiet.mq.dead_letters.streams import DeadLetterStreams
from conquiet.mq.policies import DeadLetterPolicy
from conquiet.mq.positions import Position
from conquiet.mq.topics import Topic, Topics, topic_of
from conquiet.queue.batch_size import BATCH_BYTES

#: Letters that one `list` reads before it returns what it found, and what that may weigh.
_MAX_READ = 10_000
_MAX_BYTES = 4 * BATCH_BYTES

_T = TypeVar("_T")


class LetterFilter(TypedDict, total=False):
    """Which dead letters; what is not given does not matter."""

    #: The full name, `orders.errors.NoStock`, or its last part.
    error_type: str
    group: str
    #: Dead-lettered at this time or later, ms since the epoch by the server's clock.
    since_ms: int
    #: Dead-lettered at this time or before.
    until_ms: int


_FILTERS = {"error_type": str, "group": str, "since_ms": int, "until_ms": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Some of the dead letters, oldest first unless the newest were asked for.

    Examples:
        >>> page = DeadLetters(topic).list(limit=50)
        >>> while page.after is not None:
        ...     page = DeadLetters(topic).list(limit=50, after=page.after)
    """

    letters: tuple[DeadLetterRecord, ...]
    #: Where the next page begins, `None` at the end; a page may be short and still have a next one.
    after: str | None


class DeadLetters:
    """The dead letters of one topic or plain stream, those of all partitions and groups together.

    Raises:
        TopicError: of every method, if the topic is not there, or was deleted since it was opened.

    Examples:
        >>> letters = DeadLetters(topic)
        >>> letters.count()
        0
        >>> report = letters.replay_all(error_type="NoStockError", dry_run=True)
    """

    def __init__(self, topic: Topic | str) -> None:
        """The letters of an opened topic, or of the one of this name on the server of the settings."""
        self.topic = topic_of(topic)

    def list(
        self,
        *,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
        most_read: int = _MAX_READ,
        **which: Unpack[LetterFilter],
    ) -> DeadLetterPage:
        """Up to `limit` letters behind `after`, or 32 MiB of them, oldest first; changes nothing.

        Args:
            most_read: so many are read at the most to find those that the filters match.
        """
        check_positive_int("limit", limit)
        check_positive_int("most_read", most_read)
        check_filter(which, _FILTERS, "dead letters")
        begin = None if after is None else Position.parse(after)
        streams, since_ms, end = self._opened(), which.get("since_ms", 0), _end_of(which)
        letters = (
            streams.newest(since_ms, end, before=begin)
            if newest_first
            else streams.between(since_ms, end, after=begin)
        )
        found, size = [], 0
        for number, letter in enumerate(letters, start=1):
            if _matches(letter, which):
                found.append(letter)
                size += letter.size
            if len(found) == limit or number == most_read or size >= _MAX_BYTES:
                return DeadLetterPage(letters=tuple(found), after=letter.id)
        return DeadLetterPage(letters=tuple(found), after=None)

    def show(self, letter_id: str) -> DeadLetterRecord:
        """One letter in full.

        Raises:
            TopicError: it is not there, or an id without partition names letters of several partitions.
        """
        letter = self._opened().find(letter_id)
        if letter is None:
            raise TopicError(
                self.topic.name, f"has no dead letter {letter_id}; it may have been replayed or purged"
            )
        return letter

    def count(self) -> int:
        return self._opened().count()

    def replay(self, letter_id: str, *, to_all_groups: bool = False) -> str | None:
        """Give the message of a letter once more to the group that gave it up, and return its entry's id.

        To a topic a copy for that group is added; of a plain stream the entry itself is pending again, under
        its own id. The letter is removed by the same script: `None` if it was replayed or purged before.

        Args:
            to_all_groups: add a copy that every group is given.

        Raises:
            TopicError: the letter contains no message, its group was deleted, or the plain stream's entry was
                trimmed; for the last two there is `to_all_groups`. The letter stays.
        """
        streams = self._opened()
        letter = streams.find(letter_id)
        return None if letter is None else Replay(streams, to_all_groups=to_all_groups).run(letter)

    def replay_many(
        self,
        letter_ids: Iterable[str],
        *,
        dry_run: bool = False,
        per_second: float | None = None,
        to_all_groups: bool = False,
    ) -> ReplayReport:
        """Replay letters by their ids; one that cannot be replayed does not stop the others."""
        _check_ids(letter_ids)
        _check_rate(per_second)
        streams = self._opened()
        paced = _paced(letter_ids, None if dry_run else per_second)
        letters = ((letter_id, streams.find(letter_id)) for letter_id in paced)
        return _replay_each(Replay(streams, to_all_groups=to_all_groups, dry_run=dry_run), letters)

    def replay_all(
        self,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        per_second: float | None = None,
        to_all_groups: bool = False,
        **which: Unpack[LetterFilter],
    ) -> ReplayReport:
        """Replay the letters that are there now, oldest first; those that come meanwhile are left."""
        if limit is not None:
            check_positive_int("limit", limit)
        _check_rate(per_second)
        check_filter(which, _FILTERS, "dead letters")
        streams = self._opened()
        # Ends are fixed before: a handler that fails at once again would be replayed for ever.
        ends = streams.last_ids(_end_of(which))
        letters = streams.between(which.get("since_ms", 0), ends)
        matching = (letter for letter in letters if _matches(letter, which))
        paced = _paced(matching, None if dry_run else per_second)
        named = ((letter.id, letter) for letter in paced)
        return _replay_each(Replay(streams, to_all_groups=to_all_groups, dry_run=dry_run), named, limit)

    def purge(
        self,
        letter_ids: Iterable[str] | None = None,
        *,
        older_than_ms: int | None = None,
        until_ms: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete letters for good, by id, age or time, and return how many; with `dry_run` only count them.

        Args:
            older_than_ms: all that were dead-lettered so long ago, or before.
            until_ms: all that were dead-lettered at this time, ms by the server's clock, or before.
        """
        _check_ids(letter_ids)
        if sum(given is not None for given in (letter_ids, older_than_ms, until_ms)) != 1:
            raise ValueError("purge needs letter_ids or older_than_ms or until_ms, and one of them alone")
        streams = self._opened()
        if letter_ids is not None:
            found = [streams.find(letter_id) for letter_id in dict.fromkeys(letter_ids)]
            letters = [letter for letter in found if letter is not None]
            return len(letters) if dry_run else sum(map(streams.delete, letters))
        if until_ms is None:
            check_non_negative_int("older_than_ms", older_than_ms)
            until_ms = server_ms(self.topic) - (older_than_ms or 0)
        # Those of this very millisecond too: an age of 0 means all.
        before_ms = max(1, until_ms + 1)
        if dry_run:
            return sum(1 for _ in streams.between(0, f"({before_ms}-0"))
        return streams.delete_before(before_ms)

    def trim(self, policy: DeadLetterPolicy | None = None, *, dry_run: bool = False) -> int:
        """Delete what the policy, or else the topic's own, does not keep, and return how many.

        Args:
            policy: a plain stream has none of its own.
            dry_run: only count, up to 10,000; on a cluster, in each partition.

        Raises:
            TopicError: none is given, and the topic has none.
        """
        streams = self._opened()
        policy = policy or self.topic.policies.dead_letters
        if policy is None:
            raise TopicError(self.topic.name, "has no DeadLetterPolicy; give one to trim its dead letters")
        return streams.trim(policy, streams.partitions, dry_run=dry_run)

    def _opened(self) -> DeadLetterStreams:
        # Each time: on a cluster a topic that grew has letters in streams that were not there before.
        topics = Topics(self.topic.client)
        self.topic = topics.open_again(self.topic)
        topics.check_exists(self.topic)
        return DeadLetterStreams(self.topic)


def _replay_each(
    replay: Replay, letters: Iterable[tuple[str, DeadLetterRecord | None]], limit: int | None = None
) -> ReplayReport:
    replayed, not_found, refused = 0, [], []
    for letter_id, letter in letters:
        try:
            entry_id = None if letter is None else replay.run(letter)
        except TopicError:
            refused.append(letter_id)
            continue
        if entry_id is None:
            not_found.append(letter_id)
            continue
        replayed += 1
        # Only what is replayed counts: refused letters stay, and would use up the limit of every call.
        if replayed == limit:
            break
    return ReplayReport(
        replayed=replayed, not_found=tuple(not_found), refused=tuple(refused), is_dry_run=replay.is_dry_run
    )


def _check_ids(letter_ids: object) -> None:
    # Each of its characters would be taken for an id.
    if isinstance(letter_ids, str | bytes):
        raise TypeError(f"letter_ids must be a list of ids, got {letter_ids!r}")


def _check_rate(per_second: object) -> None:
    if per_second is None:
        return
    if isinstance(per_second, bool) or not isinstance(per_second, int | float):
        raise TypeError(f"per_second must be a number, got {per_second!r}")
    if not 0 < per_second < float("inf"):
        raise ValueError(f"per_second must be above 0 and finite, got {per_second!r}")


def _end_of(which: LetterFilter) -> str:
    return str(which.get("until_ms", "+"))


def _matches(letter: DeadLetterRecord, which: LetterFilter) -> bool:
    if which.get("group", letter.group) != letter.group:
        return False
    wanted = which.get("error_type", letter.error_type)
    return wanted in (letter.error_type, letter.error_type.rpartition(".")[2])


def _paced(items: Iterable[_T], per_second: float | None) -> Iterator[_T]:
    started = time.monotonic()
    for number, item in enumerate(items):
        if per_second is not None:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        yield item
