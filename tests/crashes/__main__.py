"""`python -m tests.crashes drain_inbox --point 17`: a crash point of a scenario again, or all of them."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from conquiet import EmbeddedServer
from conquiet.testing.crash_points import Fault
from tests.crashes.worker import ALL_SCENARIOS, explorer_of


def main() -> int:
    """Explore and print; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__)
    parser.add_argument(
        "scenario", choices=sorted(ALL_SCENARIOS), metavar="scenario", help="see scenarios.py"
    )
    parser.add_argument("--point", type=int, help="the number that a failed test printed")
    parser.add_argument("--fault", choices=get_args(Fault), default="crash")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    with EmbeddedServer() as server, TemporaryDirectory() as directory:
        explorer = explorer_of(options.scenario, options.fault, url=server.url, directory=Path(directory))
        exploration = explorer.explore(options.point)
    for number, name in enumerate(exploration.points, start=options.point or 1):
        print(f"{number:4} {name}")
    print(exploration)
    for violation in exploration.violations:
        print(f"  {violation}")
    return 1 if exploration.violations else 0


if __name__ == "__main__":
    sys.exit(main())
