"""Timeline: a fixed number of bars, and a picture of them."""

from __future__ import annotations

import struct
import zlib

import pytest

from dagster_conquiet.timeline import BARS, Timeline, bar_chart_png


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_events_are_counted_in_the_bar_of_their_moment(clock):
    timeline = Timeline(clock)
    for at in (0.0, 0.005, 0.025):
        clock.now = 100.0 + at
        timeline.count()

    assert timeline.counts == [2, 0, 1]


def test_a_long_drain_has_wider_bars_and_loses_no_event(clock):
    timeline = Timeline(clock)
    for second in range(1_000):
        clock.now = 100.0 + second
        timeline.count()

    assert sum(timeline.counts) == 1_000
    assert BARS // 2 <= len(timeline.counts) <= BARS
    assert timeline.bar_width_s * len(timeline.counts) >= 999


def test_a_jump_over_many_widths_is_counted_once(clock):
    timeline = Timeline(clock)
    timeline.count()
    clock.now += 86_400
    timeline.count()

    assert sum(timeline.counts) == 2


def test_nothing_handled_is_no_picture(clock):
    assert Timeline(clock).markdown() is None


def test_the_picture_is_a_small_png_whose_highest_bar_fills_it():
    png = bar_chart_png([1, 100, 50])

    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) < 2_000
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT")
    length = struct.unpack(">I", png[start - 4 : start])[0]
    pixels = zlib.decompress(png[start + 4 : start + 4 + length])
    rows = [pixels[row * (width + 1) + 1 : (row + 1) * (width + 1)] for row in range(height)]
    bar = width // BARS
    heights = [sum(row[place * bar] for row in rows) for place in range(4)]
    assert heights == [1, height, height // 2, 0]
