"""Sends the messages of a run: per key in rising order, through every outage, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Literal, Self

import redis

from conquiet import mq
from conquiet.errors import NotReplicatedError, QueueError
from conquiet.mq import Producer
from conquiet.queue import open_client
from tests.chaos.findings import count_backlog
from tests.chaos.plan import SENDERS, TOPIC, Message, Plan, is_careful
from tests.eventually import HANG_S

_REPEATED_SHARE = 0.01
_CAREFUL_BATCH = 20
#: Of the other threads, at random: an fsync with each call bounds how much they send.
_BATCHES = (1, 5, 20)
_LONGEST_BACKLOG = 5_000
_LOOK_AT_BACKLOG_EVERY = 100
#: Longer than the longest outage; not longer, as each id needs memory.
_DEDUPE_WINDOW_MS = 600_000

Reason = Literal["full", "not replicated", "unavailable"]


class Sender:
    """Threads that send from the start of a `with` block, spread over the noisy time, each its own keys."""

    def __init__(self, url: str, plan: Plan) -> None:
        self._url = url
        self._plan = plan
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, args=(index,), daemon=True) for index in range(SENDERS)
        ]
        #: The entry id of each message.
        self.sent: dict[Message, str] = {}
        #: Sends that failed and were made again, by the reason.
        self.failed: Counter[Reason] = Counter()
        #: How often one was made again for no reason, and the entries of those that were added again then.
        self.repeated = 0
        self.first_entries: dict[Message, str] = {}
        self.problems: list[str] = []

    @property
    def is_done(self) -> bool:
        """Whether all messages are sent, or somebody gave up."""
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def count(self) -> int:
        """How many messages are sent."""
        return len(self.sent)

    def _send_all(self, index: int) -> None:
        try:
            self._send_share(index)
        except Exception as error:
            self.problems.append(f"sender {index} gave up: {error!r}")

    def _send_share(self, index: int) -> None:
        rng = random.Random(f"{self._plan.seed}:sender:{index}")
        keys = [f"key-{number}" for number in range(index, self._plan.keys, SENDERS)]
        share = len(range(index, self._plan.messages, SENDERS))
        numbers: Counter[str] = Counter()
        is_patient = is_careful(keys[0])
        # It waits for a replica with each call, so it sends more with each.
        steps = (_CAREFUL_BATCH,) if is_patient else _BATCHES
        producer = Producer(
            open_client(self._url), dedupe_window_ms=_DEDUPE_WINDOW_MS, min_replicas=int(is_patient)
        )
        began, count, look_at = time.monotonic(), 0, 0
        while count < share:
            pause_s = began + self._plan.noisy_s * count / share - time.monotonic()
            if self._is_over.wait(timeout=pause_s) if pause_s > 0 else self._is_over.is_set():
                return
            if self._plan.send_for_s is not None and time.monotonic() - began > self._plan.send_for_s:
                return
            if count >= look_at:
                self._wait_for_workers()
                look_at = count + _LOOK_AT_BACKLOG_EVERY
            batch = []
            for key in rng.choices(keys, k=min(rng.choice(steps), share - count)):
                numbers[key] += 1
                batch.append((key, numbers[key]))
            self.sent.update(zip(batch, self._send(producer, batch), strict=True))
            count += len(batch)
            if rng.random() < _REPEATED_SHARE:
                self._send_again(producer, batch)

    def _wait_for_workers(self) -> None:
        """Until little is left to do: what was sent long before the trouble's end is handled within it."""
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            while not self._is_over.is_set():
                with suppress(redis.RedisError):
                    if count_backlog(client, self._plan) < _LONGEST_BACKLOG:
                        return
                self._is_over.wait(timeout=0.2)

    def _send_again(self, producer: Producer, batch: list[Message]) -> None:
        for msg, entry_id in zip(batch, self._send(producer, batch), strict=True):
            self.repeated += 1
            if entry_id != self.sent[msg]:
                self.first_entries[msg] = self.sent[msg]
                self.sent[msg] = entry_id

    def _send(self, producer: Producer, batch: list[Message]) -> list[str]:
        messages = [
            mq.Message(payload={"key": key, "number": number}, key=key, dedupe_id=f"{key}:{number}")
            for key, number in batch
        ]
        while not self._is_over.is_set():
            try:
                return producer.send_many(TOPIC, messages)
            except QueueError as error:
                # It may have been added all the same: the dedupe id finds out.
                self.failed[_reason_of(error)] += 1
                time.sleep(0.05)
        raise RuntimeError("the run is over")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(timeout=HANG_S)


def _reason_of(error: QueueError) -> Reason:
    if isinstance(error, NotReplicatedError):
        return "not replicated"
    return "full" if "The server is full" in str(error) else "unavailable"
