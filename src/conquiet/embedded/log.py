"""The log file that all servers of a directory append to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_TAIL_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """What one start wrote to the log: earlier starts in the same directory do not show."""

    path: Path
    offset: int

    @classmethod
    def opened(cls, path: Path) -> ServerLog:
        path.touch()
        return cls(path=path, offset=path.stat().st_size)

    def text(self) -> str:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        """The last lines, indented to stand below a sentence."""
        lines = self.text().strip().splitlines()[-_TAIL_LINES:]
        return "".join(f"\n    {line}" for line in lines) or "(empty)"
