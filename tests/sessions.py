"""Processes by the session that they were started in: a server's children too, wherever they went."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from pathlib import Path

import psutil


def processes_of(sessions: Collection[int], variable: str, home: Path) -> list[psutil.Process]:
    """All living processes of these sessions, or with this home as a variable of their environment."""
    return [process for process in psutil.process_iter() if _is_of(process, sessions, variable, str(home))]


def kill_sessions(sessions: Collection[int], variable: str, home: Path) -> list[psutil.Process]:
    """SIGKILL until nothing is left, children that are born meanwhile too; what is left all the same."""
    for _ in range(20):
        processes = processes_of(sessions, variable, home)
        if not processes:
            break
        for process in processes:
            _kill(process)
        psutil.wait_procs(processes, timeout=5)
    return processes_of(sessions, variable, home)


def _is_of(process: psutil.Process, sessions: Collection[int], variable: str, home: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # A process title overwrites the environment that others see; sessions stay.
        return os.getsid(process.pid) in sessions or process.environ().get(variable) == home
    except (psutil.Error, ProcessLookupError):
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return
