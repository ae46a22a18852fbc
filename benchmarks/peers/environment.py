"""The environment of the other systems: their packages beside conquiet, apart from the project's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
ENVIRONMENT = _ROOT / ".venv-peers"


def programs_in(environment: Path = ENVIRONMENT) -> Path:
    """The directory of its programs; the environment is made if it is missing."""
    programs = environment / "bin"
    if not (programs / "python").exists():
        uv = Path(sys.executable).parent / "uv"
        requirements = Path(__file__).parent / "requirements.txt"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", programs / "python"]
        subprocess.run(
            [*install, "--requirement", requirements, "--editable", f"{_ROOT}[tasks,cli,embedded]"],
            check=True,
        )
    return programs
