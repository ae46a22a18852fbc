"""`make docs`: the site of this version beside those of others, in `site/`; without the network."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TO_LATEST = (
    '<!doctype html><meta charset="utf-8"><title>conquiet</title>'
    '<meta http-equiv="refresh" content="0; url={version}/index.html">'
    '<a href="{version}/index.html">conquiet {version}</a>\n'
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs_site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where the versions are")
    parser.add_argument("--serve", action="store_true", help="build anew whenever a page changes")
    arguments = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    # The hooks are imported by mkdocs, which knows only its own path.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    mkdocs = [sys.executable, "-m", "mkdocs"]
    command = ["serve"] if arguments.serve else ["build", "--strict", "--site-dir"]
    if not arguments.serve:
        command.append(str(arguments.out.absolute() / version))
    built = subprocess.run([*mkdocs, *command], cwd=ROOT, env=environment, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    if not arguments.serve:
        write_versions(arguments.out, version)
        print(f"{arguments.out / 'index.html'}; of version {version}")


def write_versions(out: Path, latest: str) -> None:
    """The list that the menu of versions reads, newest first, and the way to the latest one."""
    versions = sorted(
        (path.parent.name for path in out.glob("*/index.html")),
        key=lambda name: [int(part) if part.isdigit() else -1 for part in name.split(".")],
        reverse=True,
    )
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == latest else []} for name in versions
    ]
    (out / "versions.json").write_text(json.dumps(listed))
    (out / "index.html").write_text(_TO_LATEST.format(version=latest))
    (out / "llms.txt").write_text((out / latest / "llms.txt").read_text())


if __name__ == "__main__":
    main()
