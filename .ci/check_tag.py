"""Refuses a tag that is not this version, or that the changelog does not have: `check_tag.py v0.1.0`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(tag: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (in_code,) = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "src/conquiet/__init__.py").read_text(), re.MULTILINE
    )
    if tag != f"v{version}":
        sys.exit(f"the tag {tag} is not v{version}, the version of pyproject.toml")
    if in_code != version:
        sys.exit(f"conquiet.__version__ is {in_code}, pyproject.toml has {version}")
    if not re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no section {version}: rename Unreleased")


if __name__ == "__main__":
    main(sys.argv[1])
