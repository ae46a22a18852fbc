"""A run of the demo as a user starts it, with a temporary directory of its own to look at afterwards."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from examples.demo.requirements import ROOT

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Run:
    """What a run of the demo left."""

    code: int
    printed: str
    directory: Path

    def row(self, name: str) -> list[int]:
        """The figures of one row of the table."""
        [line] = re.findall(rf"^│ {re.escape(name)} +│(.+)│$", self.printed, re.MULTILINE)
        return [int(cell.replace(",", "")) for cell in line.split("│") if cell.strip() not in ("", "-")]

    def picture_size(self) -> tuple[int, int]:
        """Width and height, from the head of the file."""
        head = (self.directory / "demo.png").read_bytes()[:24]
        assert head.startswith(_PNG)
        width, height = struct.unpack(">II", head[16:24])
        return width, height

    def left_behind(self) -> list[object]:
        """Directories and processes that outlived the demo."""
        return [*self.directory.glob("conquiet-demo-*"), *processes_of(self.directory)]


def start_demo(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start it in a directory, which is its place for temporary files too."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(directory), "COLUMNS": "110", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_demo(directory: Path, *arguments: str) -> Run:
    """Run it to its end."""
    with start_demo(directory, *arguments) as demo:
        printed, _ = demo.communicate()
    return Run(demo.returncode, printed, directory)


def processes_of(directory: Path) -> list[psutil.Process]:
    """Living processes that were started for, or live in, this directory."""
    return [process for process in psutil.process_iter() if _is_of(process, str(directory))]


def _is_of(process: psutil.Process, directory: str) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        texts = [process.cwd(), *process.cmdline(), *process.environ().values()]
    except psutil.Error:
        return False
    return any(directory in text for text in texts)
