"""Sampler: takes figures of all subjects in turn, in the background, and keeps them in the sample ring."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from redis.exceptions import NoPermissionError

from conquiet.errors import ConquietError, QueueError
from conquiet.operations import Rates, Sample, SampleRing, queue_sample, rates_between, take_samples
from conquiet.page.catalogue import Catalogue, Subject
from conquiet.queue import Client

_log = logging.getLogger(__name__)

#: Seconds between two rounds, and subjects that one round samples.
_EVERY_S = 5.0
_AT_ONCE = 40
#: Those that somebody looked at lately are in each round: as many as one page of the overview shows.
_LOOKED_AT = 25


@dataclass(frozen=True, slots=True)
class Figures:
    """The last samples of one subject, and those before."""

    last: tuple[Sample, ...]
    before: tuple[Sample, ...] = ()

    def rates(self) -> dict[str | None, Rates]:
        """How fast each group moved between the two."""
        earlier = {sample.group: sample for sample in self.before}
        return {sample.group: rates_between(earlier.get(sample.group), sample) for sample in self.last}


class Sampler:
    """Lives as long as the page; its load on the server is bounded, however many subjects there are."""

    def __init__(self, client: Client, catalogue: Catalogue, namespace: str, *, finds_streams: bool) -> None:
        self._client = client
        self._catalogue = catalogue
        self._namespace = namespace
        self._finds_streams = finds_streams
        self._ring: SampleRing | None = SampleRing(client)
        self._figures: dict[Subject, Figures] = {}
        self._looked_at: deque[Subject] = deque(maxlen=_LOOKED_AT)
        self._next = 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conquiet-page-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for that."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look_at(self, subject: Subject) -> None:
        """Have a subject in each round from now on, as long as it is among the last ones."""
        if subject not in self._looked_at:
            self._looked_at.append(subject)

    def figures(self, subject: Subject) -> Figures | None:
        """Its last samples; `None` if there are none yet."""
        return self._figures.get(subject)

    def round(self) -> None:
        """Sample the next subjects.

        Raises:
            QueueError: the names cannot be read.
        """
        if self._finds_streams:
            try:
                self._catalogue.search(self._client)
            except QueueError as error:
                if not isinstance(error.__cause__, NoPermissionError):
                    raise
                _log.warning("plain streams are not looked for: %s", error)
                self._finds_streams = False
        subjects = self._catalogue.subjects(self._client)
        chosen = dict.fromkeys(self._looked_at)
        for offset in range(min(_AT_ONCE, len(subjects))):
            chosen[subjects[(self._next + offset) % len(subjects)]] = None
        self._next = (self._next + _AT_ONCE) % max(1, len(subjects))
        for subject in chosen:
            if self._is_stopping.is_set():
                return
            self._sample(subject)

    def _sample(self, subject: Subject) -> None:
        try:
            if subject.kind == "queue":
                samples = [queue_sample(self._client, subject.name, namespace=self._namespace)]
            else:
                samples = take_samples(self._client, [subject.name])
            known = self._figures.get(subject)
            if samples:
                self._figures[subject] = Figures(tuple(samples), known.last if known else ())
                self._write(samples)
        except ConquietError as error:
            # Of one subject: as a key of another type, or one that an ACL forbids.
            _log.debug("%s could not be sampled: %s", subject.name, error)

    def _write(self, samples: list[Sample]) -> None:
        if self._ring is None:
            return
        try:
            self._ring.write(samples)
        except QueueError as error:
            if not isinstance(error.__cause__, NoPermissionError):
                raise
            _log.warning("no samples are kept for charts: %s", error)
            self._ring = None

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self.round()
            except ConquietError as error:
                _log.warning("no samples were taken: %s", error)
            self._is_stopping.wait(_EVERY_S)
