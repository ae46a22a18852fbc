"""`python -m tests.chaos --seconds 60`: exit status 1 if a promise broke, 3 if it did not finish."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.chaos.plan import Plan
from tests.chaos.run import run_chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="a quarter of it is quiet")
    parser.add_argument("--messages", type=int, help="50,000 for each minute, unless given")
    parser.add_argument("--keys", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = vars(parser.parse_args())
    # As Ctrl-C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        figures = run_chaos(Plan.lasting(given.pop("seconds"), **given))
    except KeyboardInterrupt:
        return 130
    print(figures)
    return 1 if figures.violations else 3 if figures.unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
