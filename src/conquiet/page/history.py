"""Lag over time: from the samples in Redis, or from Prometheus where the settings name one."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import urlencode
from urllib.request import urlopen

from conquiet.errors import QueueError
from conquiet.operations import Sample
from conquiet.page.charts import Series
from conquiet.page.site import Site

_SPAN_S = 3 * 3600
_STEP_S = 30
_TIMEOUT_S = 1.0
#: Of the metrics of `conquiet metrics serve`, each with the name of its lines.
_METRICS = {"conquiet_mq_lag": "lag", "conquiet_mq_pending": "pending"}


@dataclass(frozen=True, slots=True)
class History:
    """Series of one subject, and where they are from."""

    series: tuple[Series, ...]
    source: str
    #: Why there are none.
    problem: str = ""


def lag_over_time(site: Site, name: str, *, is_queue: bool = False) -> History:
    """Lag and pending of each group for the last three hours; what cannot be read is a problem, not an error.

    Those of a queue of tasks are always of the samples.
    """
    url = site.settings.prometheus_url
    if url is not None and not is_queue:
        try:
            return History(_of_prometheus(url, name), "Prometheus")
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            return History((), "Prometheus", f"Prometheus does not answer as expected: {error}")
    try:
        samples = site.ring.read(name)
    except QueueError as error:
        return History((), "samples", str(error))
    problem = "" if site.settings.takes_samples else "No curve: this page was started with --no-samples."
    return History(series_of(samples), "samples", problem)


def series_of(samples: list[Sample]) -> tuple[Series, ...]:
    """Two lines for each group; of a topic without groups its length."""
    found: dict[str, list[tuple[int, float | None]]] = {}
    for sample in samples:
        if sample.group is None:
            found.setdefault("length", []).append((sample.at_ms, sample.length))
            continue
        found.setdefault(f"{sample.group}: lag", []).append((sample.at_ms, sample.lag))
        found.setdefault(f"{sample.group}: pending", []).append((sample.at_ms, sample.pending))
    return tuple(Series(name, tuple(points)) for name, points in found.items())


def _of_prometheus(url: str, name: str) -> tuple[Series, ...]:
    now = time.time()
    found: list[Series] = []
    for metric, label in _METRICS.items():
        # As PromQL writes a text.
        query = f"sum by (group) ({metric}{{topic={json.dumps(name)}}})"
        asked = {"query": query, "start": now - _SPAN_S, "end": now, "step": _STEP_S}
        address = f"{url.rstrip('/')}/api/v1/query_range?{urlencode(asked)}"
        with urlopen(address, timeout=_TIMEOUT_S) as reply:  # noqa: S310 -- of the settings: http or https
            document = json.load(reply)
        for one in document["data"]["result"]:
            values = [(round(float(at) * 1000), float(value)) for at, value in one["values"]]
            # It has NaN for what is not known.
            points = tuple((ms, value if math.isfinite(value) else None) for ms, value in values)
            found.append(Series(f"{one['metric'].get('group', '')}: {label}", points))
    return tuple(found)
