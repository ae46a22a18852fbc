"""Replay: dead letters become messages again, each in one script that removes the letter too."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from conquiet.mq import scripts
from conquiet.mq.dead_letters.record import DeadLetterRecord
from conquiet.mq.dead_letters.streams import DeadLetterStreams
from conquiet.mq.envelope import Envelope
from conquiet.payload import encode_payload
from conquiet.tracing import Where, active_traces

_ADDS_A_COPY = "to_all_groups adds a copy of it, which every group is given"
_ENTRY_ID = re.compile(r"\d{1,20}-\d{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did, or with `dry_run` would do.

    Examples:
        >>> report = DeadLetters(topic).replay_all(dry_run=True)
        >>> report.refused, report.is_dry_run
        ((), True)
    """

    replayed: int
    #: Letters that were not there: replayed or purged before.
    not_found: tuple[str, ...]
    #: Letters that cannot be replayed; they stay where they are, and `DeadLetters.replay` raises why.
    refused: tuple[str, ...]
    is_dry_run: bool = False


class Replay:
    """Replays letters of one topic or plain stream; made for one thread."""

    def __init__(self, streams: DeadLetterStreams, *, to_all_groups: bool, dry_run: bool = False) -> None:
        self._streams = streams
        self._topic = streams.topic
        self._to_all_groups = to_all_groups
        self.is_dry_run = dry_run
        # A plain stream has no copies for one group: its entry itself becomes pending again.
        self._is_in_place = self._topic.layout == "bare_stream" and not to_all_groups
        self._caller = uuid.uuid4().hex

    def run(self, letter: DeadLetterRecord) -> str | None:
        """Replay one letter and return the entry's id; `None` if the letter is no longer there.

        Raises:
            TopicError: it cannot be replayed.
        """
        envelope = letter.replayed(to_all_groups=self._to_all_groups)
        if envelope.partition not in self._topic.partitions:
            raise letter.refusal(f"the topic has no partition {envelope.partition}")
        traces = active_traces()
        if traces is None or self.is_dry_run:
            return self._exchange(letter, envelope)
        where = Where(destination=self._topic.name, partition=envelope.partition)
        with traces.replaying(where, envelope.headers) as sending:
            # A message that came with a context keeps it.
            if "traceparent" not in envelope.headers:
                envelope = envelope.copied(headers={**envelope.headers, **sending.headers[0]})
            entry_id = self._exchange(letter, envelope)
            sending.sent([] if entry_id is None else [entry_id])
        return entry_id

    def _exchange(self, letter: DeadLetterRecord, envelope: Envelope) -> str | None:
        address = self._streams.address_of(letter)
        if not self._is_in_place:
            return self._add_copy(letter, address, envelope)
        group, entry_id = letter.group or "", letter.original_id or ""
        if not _ENTRY_ID.fullmatch(entry_id):
            raise letter.refusal("it does not name its entry")
        state = scripts.replay_in_place(
            self._topic,
            address.letter_id,
            group=group,
            entry_id=entry_id,
            caller=self._caller,
            dry_run=self.is_dry_run,
        )
        if state == "trimmed":
            raise letter.refusal(f"its entry {entry_id} was trimmed from the stream; {_ADDS_A_COPY}")
        if state == "no group":
            raise letter.refusal(f"the stream has no group {group!r} any more; {_ADDS_A_COPY}")
        return entry_id if state == "replayed" else None

    def _add_copy(
        self, letter: DeadLetterRecord, address: scripts.LetterAddress, envelope: Envelope
    ) -> str | None:
        # A plain stream's message that was sent without an envelope is added without one.
        is_bare = self._topic.layout == "bare_stream" and not envelope.id
        state, entry_id = scripts.replay(
            self._topic,
            address,
            partition=envelope.partition,
            data=encode_payload(envelope.payload) if is_bare else envelope.encode(),
            group=envelope.for_group,
            caller=self._caller,
            dry_run=self.is_dry_run,
        )
        if state == "no group":
            raise letter.refusal(
                f"partition {envelope.partition} has no group {envelope.for_group!r} any more, "
                f"and all others would skip its message; {_ADDS_A_COPY}"
            )
        return entry_id if state == "replayed" else None
