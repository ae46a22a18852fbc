"""Sends the messages of a run: per key in rising order, through every outage, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Self

from conquiet.errors import QueueError
from conquiet.mq import Producer
from conquiet.queue import open_client
from tests.chaos.plan import TOPIC, Plan
from tests.eventually import HANG_S

_THREADS = 4
_REPEATED_SHARE = 0.01


class Sender:
    """Threads that send from the start of a `with` block, spread over the noisy time, each its own keys."""

    def __init__(self, url: str, plan: Plan) -> None:
        self._url = url
        self._plan = plan
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, args=(index,), daemon=True) for index in range(_THREADS)
        ]
        #: The entry id of each message, by key and number.
        self.sent: dict[tuple[str, int], str] = {}
        #: Sends that failed and were made again, and those that were made again for no reason.
        self.failed = 0
        self.repeated = 0
        self.problems: list[str] = []

    @property
    def is_done(self) -> bool:
        """Whether all messages are sent, or somebody gave up."""
        return not any(thread.is_alive() for thread in self._threads)

    def _send_all(self, index: int) -> None:
        try:
            self._send_share(index)
        except Exception as error:
            self.problems.append(f"sender {index} gave up: {error!r}")

    def _send_share(self, index: int) -> None:
        rng = random.Random(f"{self._plan.seed}:sender:{index}")
        keys = [f"key-{number}" for number in range(index, self._plan.keys, _THREADS)]
        share = len(range(index, self._plan.messages, _THREADS))
        numbers: Counter[str] = Counter()
        producer = Producer(open_client(self._url))
        began = time.monotonic()
        for count in range(share):
            pause_s = began + self._plan.noisy_s * count / share - time.monotonic()
            if self._is_over.wait(timeout=pause_s) if pause_s > 0 else self._is_over.is_set():
                return
            key = rng.choice(keys)
            numbers[key] += 1
            entry_id = self._send(producer, key, numbers[key])
            self.sent[key, numbers[key]] = entry_id
            if rng.random() < _REPEATED_SHARE:
                self.repeated += 1
                if self._send(producer, key, numbers[key]) != entry_id:
                    self.problems.append(f"{key}:{numbers[key]} was added a second time")

    def _send(self, producer: Producer, key: str, number: int) -> str:
        while not self._is_over.is_set():
            try:
                payload = {"key": key, "number": number}
                return producer.send(TOPIC, payload, key=key, dedupe_id=f"{key}:{number}")
            except QueueError:
                # It may have been added all the same: the dedupe id finds out.
                self.failed += 1
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
