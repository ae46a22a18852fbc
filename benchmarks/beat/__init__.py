"""Beat: what a tick costs grows with what is due, not with how many schedules there are."""

from benchmarks.beat import ticking
from benchmarks.measurement import Measurement

MEASUREMENTS: list[Measurement] = [*ticking.MEASUREMENTS]
