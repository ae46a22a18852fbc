"""conquiet-dev.toml: what a project needs to run on one machine."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from conquiet.errors import SettingsError

PLAN_FILE = "conquiet-dev.toml"
#: In the project: what is made by running it.
STATE_DIRECTORY = ".conquiet"

_TABLES = ("environment", "processes", "links")
_KEYS = ("web_port", "setup", *_TABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevPlan:
    """The file as it stands; `${…}` in its texts is filled in when everything is known."""

    project: Path
    #: Commands that run before the processes, each to its end.
    setup: tuple[str, ...]
    #: Commands that run until the end, by name.
    processes: Mapping[str, str]
    environment: Mapping[str, str]
    #: Addresses to open in a browser, by name.
    links: Mapping[str, str]
    #: Where the project's page is served, if that port is free.
    web_port: int

    @classmethod
    def read(cls, project: Path) -> DevPlan:
        """The plan of a project.

        Raises:
            SettingsError: there is none, or it is not well-formed.
        """
        path = project / PLAN_FILE
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SettingsError(
                f"there is no {PLAN_FILE} in {project}: `conquiet init` writes a project that has one"
            ) from None
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} cannot be read: {error}") from error
        plan = cls(
            project=project,
            setup=tuple(setup) if isinstance(setup := values.get("setup"), list) else (),
            processes=values.get("processes", {}),
            environment=values.get("environment", {}),
            links=values.get("links", {}),
            web_port=values.get("web_port", 8080),
        )
        for problem in plan._problems(values):
            raise SettingsError(f"{PLAN_FILE}: {problem}")
        return plan

    def words(self, command: str, known: Mapping[str, str]) -> list[str]:
        """A command as a list of arguments."""
        return shlex.split(self.filled(command, known))

    def filled(self, text: str, known: Mapping[str, str]) -> str:
        """The text with what is known in the place of `${…}`.

        Raises:
            SettingsError: it names something else.
        """
        try:
            return Template(text).substitute(known)
        except (KeyError, ValueError) as error:
            names = ", ".join(f"${{{name}}}" for name in known)
            problem = f"{text!r} in {PLAN_FILE} cannot be filled in, at {error}; known are {names}"
            raise SettingsError(problem) from None

    def _problems(self, values: Mapping[str, Any]) -> Iterator[str]:
        for key in values:
            if key not in _KEYS:
                yield f"{key} is not known; known are {', '.join(_KEYS)}"
        if not isinstance(self.web_port, int):
            yield f"web_port must be a number, got {self.web_port!r}"
        setup = values.get("setup", [])
        if not isinstance(setup, list) or not _are_texts(setup):
            yield f"setup must be a list of commands, got {setup!r}"
        for name in _TABLES:
            table = getattr(self, name)
            if not isinstance(table, Mapping) or not _are_texts(tuple(table.values())):
                yield f"[{name}] must be a table of texts, got {table!r}"
        if not self.processes:
            yield "[processes] has no process"


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
