"""Where one stream is cut so that several tasks get about the same number of entries each.

Redis cannot say which entry is the n-th. It can show what stands at a given time: a few entries at many
places tell how dense the stream is there, and where nothing is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conquiet.spark.entry_ids import EntryId, IdRange

#: Looks at a few entries from each id on: first id, last id, how many; `None` where there is nothing.
Sampler = Callable[[Sequence[EntryId]], Sequence[tuple[EntryId, EntryId, int] | None]]

_PROBES_PER_PIECE = 8
_MOST_PROBES = 256
_ROUNDS = 8

#: In a stream shorter than this the sequence within a millisecond counts too, as if it were time.
_SHORT_MS = 1_000
_FINE = 2**20


@dataclass(frozen=True, slots=True, order=True)
class _Sample:
    point: int
    first: EntryId
    last: EntryId
    count: int


class _Axis:
    """Ids as numbers on a line."""

    def __init__(self, within: IdRange) -> None:
        self._scale = _FINE if within.last.ms - within.first.ms < _SHORT_MS else 1

    def number(self, entry_id: EntryId) -> int:
        return entry_id.ms * self._scale + min(entry_id.sequence, self._scale - 1)

    def entry_id(self, number: int) -> EntryId:
        return EntryId(number // self._scale, number % self._scale)


def cut(within: IdRange, length: int, rows_per_split: int, sample: Sampler) -> list[IdRange]:
    """Ranges that cover `within`, each of them but the first beginning at an entry that is there.

    Args:
        within: from an entry that is there to one that is there.
        length: how many entries are in it at most.
        sample: looks into the stream, and nowhere behind `within.last`.
    """
    pieces = -(-length // rows_per_split)
    if pieces <= 1:
        return [within]
    axis = _Axis(within)
    samples = _explore(within, axis, min(_PROBES_PER_PIECE * pieces, _MOST_PROBES), sample)
    masses = _masses(samples, within, axis)
    target = max(sum(masses) / pieces, 1e-9)
    starts, passed, goal = [within.first], 0.0, target
    for found, mass in zip(samples, masses, strict=True):
        if passed >= goal and found.first > starts[-1]:
            starts.append(found.first)
            # Behind a dense place several cuts may be due at once: only one can be made.
            goal += target * max(1, int((passed - goal) / target) + 1)
        passed += mass
    ends = [start.previous() for start in starts[1:]] + [within.last]
    return [IdRange(start, end) for start, end in zip(starts, ends, strict=True)]


def _explore(within: IdRange, axis: _Axis, probes: int, sample: Sampler) -> list[_Sample]:
    low, high = axis.number(within.first), axis.number(within.last)
    samples: list[_Sample] = []
    gaps = [(low - 1, high + 1)]
    for _ in range(_ROUNDS):
        points = _spread(gaps, probes, [found.point for found in samples])
        if not points:
            break
        _look(points, axis, sample, samples)
        masses = _masses(samples, within, axis)
        # Where more than a fraction of a piece is only guessed, a closer look is worth it.
        enough = sum(masses) / probes
        guessed = _guessed(samples, within, axis)
        gaps = [gap for gap, mass in guessed if mass > 2 * enough and gap[1] - gap[0] > 1]
    return samples


def _spread(gaps: list[tuple[int, int]], probes: int, known: list[int]) -> list[int]:
    seen = set(known)
    each = max(1, probes // max(1, len(gaps)))
    points = {
        low + (high - low) * number // (each + 1) for low, high in gaps for number in range(1, each + 1)
    }
    points |= {low + 1 for low, _ in gaps}
    return sorted(points - seen)[: 2 * probes]


def _look(points: list[int], axis: _Axis, sample: Sampler, samples: list[_Sample]) -> None:
    # A place is known by the first entry behind it: many points in a hole lead to the same one.
    by_first = {found.first: found for found in samples}
    for point, found in zip(points, sample([axis.entry_id(point) for point in points]), strict=True):
        if found is None:
            continue
        first, last, count = found
        before = by_first.get(first)
        if before is None:
            by_first[first] = new = _Sample(point, first, last, count)
            insort(samples, new)
        elif point < before.point:
            samples.remove(before)
            by_first[first] = new = _Sample(point, first, last, count)
            insort(samples, new)


def _masses(samples: list[_Sample], within: IdRange, axis: _Axis) -> list[float]:
    """How many entries there are from each sample's first one to the next sample's, by what was seen."""
    return [
        mass + min(found.count, _entries_before(samples, index, axis))
        for index, (found, (_, mass)) in enumerate(zip(samples, _guessed(samples, within, axis), strict=True))
    ]


def _guessed(samples: list[_Sample], within: IdRange, axis: _Axis) -> list[tuple[tuple[int, int], float]]:
    """The stretch behind each sample that was not looked at, and what may be in it."""
    guesses = []
    for index, found in enumerate(samples):
        is_last = index + 1 == len(samples)
        low = axis.number(found.last)
        high = axis.number(within.last) if is_last else samples[index + 1].point
        density = _density(found, axis)
        if not is_last:
            density = (density + _density(samples[index + 1], axis)) / 2
        guesses.append(((low, high), max(0, high - low) * density))
    return guesses


def _density(found: _Sample, axis: _Axis) -> float:
    return found.count / (axis.number(found.last) - axis.number(found.first) + 1)


def _entries_before(samples: list[_Sample], index: int, axis: _Axis) -> float:
    # Two samples may overlap; what they share must not count twice.
    if index + 1 == len(samples) or samples[index].last < samples[index + 1].first:
        return float("inf")
    ours = samples[index]
    share = axis.number(samples[index + 1].first) - axis.number(ours.first)
    return max(1.0, _density(ours, axis) * share)
