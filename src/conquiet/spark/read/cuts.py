"""Where one stream is cut so that several tasks get about the same number of entries each.

Redis cannot say which entry is the n-th. It can return what was added at a given time: a few entries at many
times show how dense the stream is there, and where nothing is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from conquiet.spark.entry_ids import EntryId, IdRange

#: Reads a few entries from each id on: first id, last id, how many; `None` where there is nothing.
Sampler = Callable[[Sequence[EntryId]], Sequence[tuple[EntryId, EntryId, int] | None]]

_PROBES_PER_SPLIT = 8
_MOST_PROBES = 256
_ROUNDS = 8
#: There are at most about so many times the entries that samples tell of.
_UNSEEN = 3

#: In a stream shorter than this the sequence within a millisecond counts too, as if it were time.
_SHORT_MS = 1_000
_FINE = 2**20


def cut(
    within: IdRange,
    most: int,
    rows_per_split: int,
    sample: Sampler,
    *,
    at_least: int = 1,
    is_exact: bool = True,
) -> list[IdRange]:
    """Ranges that cover `within`, each of them but the first beginning at an entry that is there.

    Args:
        within: from an entry that is there to one that is there.
        most: how many entries are in it at most.
        sample: reads from the stream, and nothing behind `within.last`.
        at_least: about so many ranges, if there are as many entries.
        is_exact: there are so many; else samples tell how many there may be.
    """
    splits = max(-(-most // rows_per_split), min(at_least, most))
    if splits <= 1:
        return [within]
    density = _Density(within)
    probes = min(_PROBES_PER_SPLIT * splits, _MOST_PROBES)
    gaps = [(density.number(within.first) - 1, density.number(within.last) + 1)]
    for _ in range(_ROUNDS):
        if not density.probe(gaps, probes, sample):
            break
        # Where more than a fraction of a split is only estimated, more samples are worth their time.
        enough = 2 * sum(density.entries()) / probes
        gaps = [gap for gap, entries in density.gaps() if entries > enough and gap[1] - gap[0] > 1]
    counts = density.entries()
    if not is_exact:
        # Of many in one millisecond some go unseen.
        splits = min(splits, max(at_least, ceil(_UNSEEN * sum(counts) / rows_per_split)))
    target = max(sum(counts) / splits, 1e-9)
    starts, passed, goal = [within.first], 0.0, target
    for found, count in zip(density.samples, counts, strict=True):
        if passed >= goal and found.first > starts[-1]:
            starts.append(found.first)
            # Behind a dense stretch several cuts may be due at once: only one can be made.
            goal += target * max(1, int((passed - goal) / target) + 1)
        passed += count
    ends = [start.previous() for start in starts[1:]] + [within.last]
    return [IdRange(start, end) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True, order=True)
class _Sample:
    point: int
    first: EntryId
    last: EntryId
    count: int


class _Density:
    """Samples in the order of the stream, and what they say about the entries between them."""

    def __init__(self, within: IdRange) -> None:
        self._last = within.last
        self._scale = _FINE if within.last.ms - within.first.ms < _SHORT_MS else 1
        self.samples: list[_Sample] = []

    def number(self, entry_id: EntryId) -> int:
        """An id as a point on a line."""
        return entry_id.ms * self._scale + min(entry_id.sequence, self._scale - 1)

    def probe(self, gaps: list[tuple[int, int]], probes: int, sample: Sampler) -> bool:
        """Sample at points that are spread over the gaps; false if there are no new ones."""
        each = max(1, probes // max(1, len(gaps)))
        spread = {
            low + (high - low) * number // (each + 1) for low, high in gaps for number in range(1, each + 1)
        }
        spread |= {low + 1 for low, _ in gaps}
        points = sorted(spread - {known.point for known in self.samples})[: 2 * probes]
        # A sample is known by its first entry: many points in a hole lead to the same one.
        by_first = {known.first: known for known in self.samples}
        ids = [EntryId(point // self._scale, point % self._scale) for point in points]
        for point, found in zip(points, sample(ids) if ids else [], strict=True):
            known = by_first.get(found[0]) if found is not None else None
            if found is None or (known is not None and known.point <= point):
                continue
            if known is not None:
                self.samples.remove(known)
            by_first[found[0]] = new = _Sample(point, *found)
            insort(self.samples, new)
        return bool(points)

    def entries(self) -> list[float]:
        """About how many entries there are from each sample's first one to the next sample's."""
        counts = []
        for index, (sample, (_, entries)) in enumerate(zip(self.samples, self.gaps(), strict=True)):
            count: float = sample.count
            following = self.samples[index + 1] if index + 1 < len(self.samples) else None
            if following is not None and sample.last >= following.first:
                # Two samples may overlap; what they share must not count twice.
                share = self.number(following.first) - self.number(sample.first)
                count = min(count, max(1.0, self._per_point(sample) * share))
            counts.append(entries + count)
        return counts

    def gaps(self) -> list[tuple[tuple[int, int], float]]:
        """The stretch behind each sample that was not read, and about how many entries are in it."""
        gaps = []
        for index, sample in enumerate(self.samples):
            low, high, per_point = self.number(sample.last), self.number(self._last), self._per_point(sample)
            if index + 1 < len(self.samples):
                following = self.samples[index + 1]
                high, per_point = following.point, (per_point + self._per_point(following)) / 2
            gaps.append(((low, high), max(0, high - low) * per_point))
        return gaps

    def _per_point(self, sample: _Sample) -> float:
        return sample.count / (self.number(sample.last) - self.number(sample.first) + 1)
