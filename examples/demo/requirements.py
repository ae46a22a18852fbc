"""What the whole pipeline needs on this machine, and the sentence for what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from examples.demo.processes import DemoError

#: The checkout, with the DAGs and the assets that the pipeline runs.
ROOT = Path(__file__).parents[2]

_JAVA = 17
_QUICK = "`make demo ARGS=--quick` shows the short form, without Airflow, Spark and Dagster"


def program(name: str, package: str) -> Path:
    """A program beside this Python.

    Raises:
        DemoError: its package is not installed.
    """
    path = Path(sys.executable).with_name(name)
    if find_spec(package) is None or not path.is_file():
        raise DemoError(f"{package} is not installed: `make demo` installs it; {_QUICK}")
    return path


def check_java() -> None:
    """Java as Spark will find it.

    Raises:
        DemoError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    version = _java_version(java) if java else 0
    if version < _JAVA:
        problem = f"{java} is Java {version}" if java else "no Java was found"
        where = "JAVA_HOME" if home else "PATH"
        raise DemoError(
            f"Spark needs Java {_JAVA} or later and {problem} by {where}: install it (Debian, Ubuntu: "
            f"apt-get install openjdk-17-jre-headless) or set JAVA_HOME; {_QUICK}"
        )


def _java_version(java: str) -> int:
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(version.group(1)) if version else 0
