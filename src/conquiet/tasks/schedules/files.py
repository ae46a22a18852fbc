"""Schedules of a file, TOML or YAML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conquiet.extras import needs_extra
from conquiet.tasks.schedules.schedule import Schedule


def load_schedules(path: Path | str) -> list[Schedule]:
    """The schedules of a file: its table `schedules`, by name.

    Raises:
        ValueError: it is no such file; with the reason.

    Examples:
        >>> from pathlib import Path
        >>> import os
        >>> lines = ["[schedules.nightly]", 'task = "shop.bill"', 'cron = "0 2 * * *"']
        >>> written = Path("schedules.toml").write_text(os.linesep.join(lines))
        >>> [schedule.name for schedule in load_schedules("schedules.toml")]
        ['nightly']
    """
    file = Path(path)
    try:
        document = _parsed(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file} cannot be read: it is nested too deeply") from error
    table = document.get("schedules") if isinstance(document, Mapping) else None
    if not isinstance(table, Mapping) or document.keys() != {"schedules"}:
        raise ValueError(f"{file} must have one table, schedules, with a table for each schedule by its name")
    schedules = []
    for name, one in table.items():
        if not isinstance(name, str):
            raise ValueError(f"{file}: the name {name!r} of a schedule must be a text: quote it")  # noqa: TRY004
        if not isinstance(one, Mapping):
            raise ValueError(f"{file}: schedule {name!r} must be a table, got {one!r:.100}")  # noqa: TRY004
        try:
            schedules.append(Schedule.of_document(name, one))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return schedules


def _parsed(file: Path) -> Any:
    if file.suffix not in (".yaml", ".yml"):
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    with needs_extra("cli", "yaml", part="a file in YAML"):
        import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses a name that is there twice, of which YAML's own keeps the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            # Not of a merge, `<<`, which names of its own replace.
            keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            names = [self.construct_object(key, deep=True) for key in keys]
            for name in names:
                if names.count(name) > 1:
                    raise yaml.YAMLError(f"{name!r} is there twice")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(file.read_text(encoding="utf-8-sig"), Loader)  # noqa: S506 -- a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
