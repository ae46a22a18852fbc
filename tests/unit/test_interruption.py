"""Errors that one thread raises in another one, and takes back."""

from __future__ import annotations

import subprocess
import sys
import threading

from conquiet.tasks.errors import SoftTimeLimitError
from conquiet.tasks.interruption import Interruption
from tests.eventually import HANG_S


def test_an_interrupted_task_leaves_nothing_for_what_its_thread_runs_next() -> None:
    interruption, seen = Interruption(), []

    def run() -> None:
        for _ in range(20):
            try:
                with interruption.allowed("t", is_async=False):
                    interruption.interrupt("t", SoftTimeLimitError(1.0))
                    for _step in range(1_000):
                        pass
            except SoftTimeLimitError as error:
                seen.append(error)
            for _step in range(1_000):
                pass

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(HANG_S)

    assert len(seen) == 20


def test_a_tracer_works_after_an_interruption() -> None:
    # On Python 3.11 it hung for ever, as in a debugger: in a process of its own.
    code = (
        "import sys, threading\n"
        "from conquiet.tasks.errors import SoftTimeLimitError\n"
        "from conquiet.tasks.interruption import Interruption\n"
        "one = Interruption()\n"
        "try:\n"
        "    with one.allowed('t', is_async=False):\n"
        "        one.interrupt('t', SoftTimeLimitError(1.0))\n"
        "        while True: pass\n"
        "except SoftTimeLimitError: pass\n"
        "def call(): return 'traced'\n"
        "sys.settrace(lambda *_: None)\n"
        "print(call())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)

    assert (done.stdout, done.stderr) == ("traced\n", "")
