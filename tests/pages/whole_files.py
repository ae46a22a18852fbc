"""Pages whose blocks are whole files for an empty project, and their commands, run as a reader would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.eventually import HANG_S
from tests.packaging.environments import ROOT

_FILE = re.compile(r"^```python\n# (?P<name>\w+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(
    r"^\$ (?P<line>.*?)(?:\s+# (?:exit (?P<code>\d+)|(?P<aside>in a terminal of its own).*|.*))?$"
)
_BLOCK = re.compile(r"^```python$", re.MULTILINE)


def files_of(page: str) -> dict[str, str]:
    """The files that a page shows, by name; every Python block of it is one."""
    text = (ROOT / page).read_text()
    files = {found["name"]: found["code"] for found in _FILE.finditer(text)}
    assert len(files) == len(_BLOCK.findall(text)), f"{page} has a block that is not a file, or one twice"
    return files


class Reader:
    """Someone with an empty directory, a shell and the page; knows nothing of the repository."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        kept = ("HOME", "JAVA_HOME", "LANG", "TMPDIR")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._asides = ExitStack()

    def close(self) -> None:
        """End what runs in terminals of their own."""
        self._asides.close()

    def save(self, files: dict[str, str]) -> None:
        """Save files as they are shown."""
        for name, code in files.items():
            (self.directory / name).write_text(code)

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def follow(self, page: str) -> int:
        """Run all commands of a page, and compare exit codes and what is shown; how many there were."""
        commands = 0
        for block in _CONSOLE.findall((ROOT / page).read_text()):
            printed = ""
            for line in block.splitlines():
                found = _COMMAND.match(line)
                if found is None:
                    assert line in printed.splitlines(), (page, line, printed)
                    continue
                commands += 1
                if found["aside"]:
                    self.begin(found["line"])
                elif found["line"].startswith("export "):
                    self._export(found["line"])
                else:
                    ran = self.run(found["line"])
                    printed = ran.stdout
                    # As an interactive shell has it: 137 is SIGKILL.
                    code = ran.returncode if ran.returncode >= 0 else 128 - ran.returncode
                    assert code == int(found["code"] or 0), (line, ran.stdout, ran.stderr)
        return commands

    def _export(self, line: str) -> None:
        ran = self.run(f"{line} && env -0")
        assert ran.returncode == 0, ran.stderr
        self.environment |= dict(one.split("=", 1) for one in ran.stdout.split("\0") if "=" in one)

    def begin(self, line: str) -> None:
        """Start a command in a terminal of its own, and paste the line that it prints for the others."""
        printed = self._asides.enter_context(_running(line, self))
        for text in printed:
            # What the page says to paste.
            if export := re.search(r"export (CONQUIET_REDIS_URL)=(\S+)", text):
                self.environment[export[1]] = export[2]
                return
            if "stops it" in text:
                return
        raise AssertionError(f"{line} ended")


@contextmanager
def _running(line: str, reader: Reader) -> Iterator[Iterator[str]]:
    with (reader.directory / "aside.log").open("a") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=reader.directory,
            env=reader.environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield iter(process.stdout.readline, "")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
