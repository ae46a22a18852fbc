"""Runs a command again whenever its code changes."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02
_LOOK_AT_FILES_EVERY_S = 0.3
_NOT_SOURCE = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))


def run_with_reload(command: Sequence[str], directory: Path, received: list[int]) -> int:
    """Run a command, and again whenever a .py file of the directory changes, until a signal.

    Returns its exit code. When it ends by itself, as after a mistake in the code, the next change starts it.
    """
    while True:
        before = _sources(directory)
        # A group of its own: signals of the terminal come to this process alone, which passes them on.
        process = subprocess.Popen(command, process_group=0)
        if not _wait_for_change(process, directory, before, received):
            return _forward_signals(process, received)
        _log.warning("a file has changed: the worker starts again")
        process.terminate()
        while process.poll() is None and not received:
            time.sleep(_LOOK_EVERY_S)
        if received:
            return _forward_signals(process, received)


def _wait_for_change(
    process: subprocess.Popen[bytes], directory: Path, before: Mapping[Path, int], received: list[int]
) -> bool:
    has_ended = False
    while not received:
        if process.poll() is not None and not has_ended:
            has_ended = True
            _log.warning(
                "the worker has ended with exit code %s; it starts again after the next change",
                process.returncode,
            )
        if _sources(directory) != before:
            return True
        time.sleep(_LOOK_AT_FILES_EVERY_S)
    return False


def _forward_signals(process: subprocess.Popen[bytes], received: list[int]) -> int:
    sent = 0
    while process.poll() is None:
        if len(received) > sent:
            process.send_signal(received[sent])
            sent += 1
        time.sleep(_LOOK_EVERY_S)
    # By the signal itself, or as a command that it interrupts while it starts: it had nothing to finish yet.
    code = process.returncode
    return 0 if -code in received or code - 128 in received else code


def _sources(directory: Path) -> dict[Path, int]:
    """Each file of Python code with the time of its last change."""
    found = {}
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_SOURCE]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
    return found
