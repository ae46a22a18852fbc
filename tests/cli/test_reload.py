"""A command that runs again when its code changes."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

from conquiet.cli.reload import run_with_reload
from tests.eventually import eventually

#: Ends with the code that its second argument names, when Ctrl-C comes.
COMMAND = """
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(3600)
except KeyboardInterrupt:
    sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (130, 0), (3, 3)])
def test_a_worker_that_is_interrupted_while_it_starts_has_ended_well(tmp_path: Path, code: int, ended: int):
    has_started, received = tmp_path / "started", list[int]()
    sources = tmp_path / "sources"
    sources.mkdir()

    def press_ctrl_c() -> None:
        eventually(has_started.exists)
        received.append(signal.SIGINT)

    presses = threading.Thread(target=press_ctrl_c)
    presses.start()
    command = [sys.executable, "-c", COMMAND, str(has_started), str(code)]

    assert run_with_reload(command, sources, received) == ended
    presses.join()
