"""`python -m tests.chaos --seconds 60`, or `--tasks 20000`: status 1 if a promise broke, 3 if unfinished."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import fields
from typing import Any

from tests.chaos.figures import Figures
from tests.chaos.plan import Plan
from tests.chaos.run import run_chaos
from tests.chaos.task_figures import TaskFigures
from tests.chaos.task_plan import TaskPlan
from tests.chaos.task_run import run_task_chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="a quarter of it is quiet")
    parser.add_argument("--messages", type=int, help="30,000 for each minute, unless given")
    parser.add_argument("--send-for-s", type=float, help="send no more after this time")
    parser.add_argument("--tasks", type=int, help="a run of the task layer, with so many of them")
    parser.add_argument("--trouble-every-s", type=float, default=1.25, help="on average")
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--workers", type=int, help="4, or 6 for tasks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="the figures also as a page has them")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    is_table = given.pop("table")
    # As Ctrl-C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        figures = _run(given)
    except KeyboardInterrupt:
        return 130
    print(figures)
    if is_table and isinstance(figures, Figures):
        print(figures.table())
    return 1 if figures.violations else 3 if figures.unfinished else 0


def _run(given: dict[str, Any]) -> Figures | TaskFigures:
    if "tasks" in given:
        return run_task_chaos(
            TaskPlan(**{one.name: given[one.name] for one in fields(TaskPlan) if one.name in given})
        )
    return run_chaos(Plan.lasting(given.pop("seconds"), **given))


if __name__ == "__main__":
    sys.exit(main())
