"""Timeline: a fixed number of bars, and a picture of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from dagster_conquiet.steps.timeline import BARS, Timeline, bar_chart_svg


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


def test_the_picture_is_a_small_svg_whose_highest_bar_fills_it():
    picture = bar_chart_svg([1, 100, 50, 0])

    assert len(picture) < 500
    svg = ElementTree.fromstring(picture)
    height = int(svg.attrib["height"])
    drawn = svg.find("{http://www.w3.org/2000/svg}path")
    assert drawn is not None
    path = drawn.attrib["d"]
    heights = {int(x): int(bar) for x, bar in re.findall(r"M(\d+),\d+v-(\d+)", path)}
    assert list(heights.values()) == [1, height, height // 2]
    assert max(heights) < int(svg.attrib["width"])


def test_the_picture_of_the_longest_timeline_stays_small():
    assert len(bar_chart_svg([100] * BARS)) < 2_000
