"""The process that explores: it imports everything once, has no threads and so may fork for every crash."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from conquiet.testing.crash_points import Fault
from tests.crashes.beat_scenarios import BEAT_SCENARIOS, BEAT_WRONG_LOOPS
from tests.crashes.explorer import Exploration, Explorer
from tests.crashes.mq_explorer import MqExplorer, MqScenario
from tests.crashes.mq_scenarios import MQ_SCENARIOS
from tests.crashes.mq_wrong_loops import MQ_WRONG_LOOPS
from tests.crashes.scenarios import SCENARIOS
from tests.crashes.task_explorer import TaskExplorer, TaskScenario
from tests.crashes.task_scenarios import TASK_SCENARIOS
from tests.crashes.task_wrong_loops import TASK_WRONG_LOOPS
from tests.crashes.wrong_loops import WRONG_LOOPS

ALL_SCENARIOS = SCENARIOS | WRONG_LOOPS | MQ_SCENARIOS | MQ_WRONG_LOOPS | TASK_SCENARIOS | TASK_WRONG_LOOPS
ALL_SCENARIOS |= BEAT_SCENARIOS | BEAT_WRONG_LOOPS

_ROOT = Path(__file__).parents[2]


class Worker:
    """A worker process from the start of a `with` block to its end, where it dies with all its children."""

    def __init__(self, url: str) -> None:
        self._url = url

    def explore(self, scenario: str, fault: Fault, directory: Path) -> Exploration:
        """Have one scenario explored; what it writes on the way goes into the directory."""
        print(json.dumps([scenario, fault, self._url, str(directory)]), file=self._process.stdin, flush=True)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, f"the worker ended with status {self._process.wait()}"
        return Exploration(**json.loads(answer))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)


def explorer_of(name: str, fault: Fault, *, url: str, directory: Path) -> Explorer:
    """The explorer of a scenario, by its name."""
    scenario = ALL_SCENARIOS[name]
    explorer = Explorer
    if isinstance(scenario, MqScenario | TaskScenario):
        explorer = MqExplorer if isinstance(scenario, MqScenario) else TaskExplorer
    return explorer(name, scenario, fault, url=url, directory=directory)


def main() -> None:
    """Explore what each line of the input asks for, and answer with a line."""
    # Handlers fail by plan here, hundreds of times.
    logging.disable()
    for line in sys.stdin:
        name, fault, url, directory = json.loads(line)
        exploration = explorer_of(name, fault, url=url, directory=Path(directory)).explore()
        print(json.dumps(dataclasses.asdict(exploration)), flush=True)


if __name__ == "__main__":
    main()
