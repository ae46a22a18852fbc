"""`conquiet init`: writes a small project that runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from conquiet.cli.context import CommandContext
from conquiet.cli.exits import UsageError

KINDS = ("airflow", "dagster", "spark", "tasks")


def init(
    context: CommandContext,
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.", metavar="KIND")],
    directory: Annotated[
        Path, typer.Argument(help="Where; made if it is not there.", metavar="[DIR]")
    ] = Path(),
) -> None:
    """Write a small project that runs, with a handler, tests and a README that says what is next.

    No file that is there is changed.
    """
    if kind not in KINDS:
        raise UsageError(f"There is no project {kind!r}: KIND is {', '.join(KINDS)}.")
    contents = dict(_project_files(files("conquiet.cli") / "projects" / kind))
    there = [name for name in contents if (directory / name).exists()]
    if there:
        raise UsageError(f"{', '.join(there)} in {directory} would be overwritten: choose another directory.")
    for name, content in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shown = "".join(f"\n  {name}" for name in sorted(contents))
    into = "" if directory == Path() else f"    cd {directory}\n"
    context.output.show(
        {"kind": kind, "directory": str(directory), "files": sorted(contents)},
        f"A project for {kind} in {directory}:{shown}\n\nNext:\n\n{into}"
        "    pip install -r requirements.txt\n    pytest\n    conquiet dev",
    )


def _project_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _project_files(entry, f"{prefix}{entry.name}/")
        elif not entry.name.endswith(".pyc"):
            # Under its own name it would be in force in the package, too.
            name = ".gitignore" if entry.name == "gitignore" else entry.name
            yield prefix + name, entry.read_bytes()
