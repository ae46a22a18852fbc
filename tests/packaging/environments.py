"""Wheel and sdist as `uv build` makes them, and clean virtual environments to install them into."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_UV = Path(sys.executable).parent / "uv"


@dataclass(frozen=True, slots=True)
class Built:
    """What would be uploaded."""

    wheel: Path
    sdist: Path


def build(directory: Path) -> Built:
    """Wheel and sdist of the tree, the wheel made from the sdist."""
    _build(ROOT, directory)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return Built(wheel, sdist)


def build_wheel(source: Path, directory: Path) -> Path:
    """The wheel of another tree, made from it directly, as `pip install .` does."""
    _build(source, directory, "--wheel")
    (wheel,) = directory.glob("*.whl")
    return wheel


def _build(source: Path, directory: Path, *options: str) -> None:
    # With the backend that is installed: nothing is downloaded.
    where = ["--python", sys.executable, "--out-dir", str(directory)]
    _uv("build", "--quiet", "--no-build-isolation", "--offline", *where, *options, str(source))


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with nothing in it but what it was given."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> Environment:
        """Make it, empty."""
        _uv("venv", "--quiet", "--offline", "--python", sys.executable, str(directory))
        return cls(directory)

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    def install(self, wheel: Path, extras: str = "", *, is_dry_run: bool = False) -> str:
        """Install the wheel with what it requires; what uv said."""
        requirement = f"conquiet{extras} @ {wheel.as_uri()}"
        pins = ["--constraint", str(ROOT / "constraints.txt")]
        options = ["--python", str(self.directory), *pins, *(["--dry-run"] if is_dry_run else [])]
        try:
            # What `make` has installed is in uv's cache.
            return _uv("pip", "install", "--offline", *options, requirement)
        except subprocess.CalledProcessError:
            return _uv("pip", "install", *options, requirement)

    def add(self, requirement: str) -> None:
        """Install another version of something, or something else."""
        _uv("pip", "install", "--python", str(self.directory), requirement)

    def distributions(self) -> set[str]:
        """The names of all that is installed."""
        lines = _uv("pip", "list", "--python", str(self.directory), "--format", "freeze").splitlines()
        return {line.split("==")[0] for line in lines if "==" in line}

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, which finds nothing of the environment of the tests."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env={"PATH": str(self.bin), "HOME": str(cwd), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
        )


def _uv(*arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    ran = subprocess.run([_UV, *arguments], env=variables, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        error = subprocess.CalledProcessError(ran.returncode, ran.args, ran.stdout, ran.stderr)
        error.add_note(ran.stderr)
        raise error
    return ran.stdout + ran.stderr
