"""`python -m examples.demo`: orders through Airflow, Spark and Dagster, a killed worker, nothing lost."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from examples.demo.cluster import run_cluster
from examples.demo.pipeline import run_pipeline
from examples.demo.processes import DemoError
from examples.demo.quick import run_quick
from examples.demo.result import Plan, print_result
from examples.demo.stages import Stages
from examples.demo.watcher import Timeline

_ORDERS = 5_000
_ORDERS_QUICK = 2_000
_ORDERS_CLUSTER = 200_000
_FEWEST = 200


def main() -> int:
    """Run the demo; 0 if the totals agree, 1 if not, 2 if it could not be run, 130 after Ctrl-C."""
    options = _options()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _leave)
    try:
        with _directory(options.keep, console) as directory:
            plan = Plan(orders=options.orders, directory=directory, is_one_lost=options.lose_one)
            run, how = run_pipeline, "Airflow, Spark, Dagster, one worker killed"
            if options.quick:
                run, how = run_quick, "plain workers, one worker killed"
            if options.cluster:
                run, how = run_cluster, "Spark and three nodes, one executor killed"
            timeline = Timeline()
            with Stages(console, timeline) as stages:
                result = run(plan, stages, timeline)
            title = f"{plan.orders:,} orders through {how}"
            print_result(result, console, options.picture.absolute(), title=title)
    except DemoError as error:
        console.print(f"The demo stopped: {error}", style="red", markup=False, soft_wrap=True)
        if not options.keep and error.log is not None:
            console.print("With --keep the logs and the databases stay.")
        return 2
    except KeyboardInterrupt:
        console.print("Stopped by Ctrl-C; nothing is left running.")
        return 130
    return 0 if result.proof.is_right else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--cluster",
        action="store_true",
        help="Spark standalone and a Redis Cluster of three nodes, without Airflow and Dagster",
    )
    forms.add_argument(
        "--quick", action="store_true", help="plain workers only, without Airflow, Spark and Dagster"
    )
    parser.add_argument(
        "--orders",
        type=_count,
        help=f"how many orders to send (default: {_ORDERS}, with --quick {_ORDERS_QUICK}, with --cluster "
        f"{_ORDERS_CLUSTER})",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("demo.png"),
        help="where to write the picture (default: demo.png)",
    )
    parser.add_argument(
        "--lose-one", action="store_true", help="delete an order before the proof, to see it fail"
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs and the databases")
    options = parser.parse_args()
    if options.orders is None:
        of_form = _ORDERS_CLUSTER if options.cluster else _ORDERS
        options.orders = _ORDERS_QUICK if options.quick else of_form
    return options


def _count(value: str) -> int:
    if not value.isdigit() or int(value) < _FEWEST:
        raise argparse.ArgumentTypeError(f"at least {_FEWEST}, so that a worker can be killed in the middle")
    return int(value)


@contextmanager
def _directory(is_kept: bool, console: Console) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="conquiet-demo-"))
    try:
        yield directory
    finally:
        if is_kept:
            console.print(f"Logs and databases: {directory}", soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
