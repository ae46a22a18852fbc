"""Beat: enqueues what schedules have due."""

from conquiet.tasks.beat.beat import Beat, TickReport
from conquiet.tasks.beat.collector import BeatCollector
from conquiet.tasks.beat.config import BeatConfig

__all__ = ["Beat", "BeatCollector", "BeatConfig", "TickReport"]
