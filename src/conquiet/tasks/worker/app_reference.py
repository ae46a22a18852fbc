"""Apps by name: "shop.tasks:app", or by file: "tasks.py:app"."""

from __future__ import annotations

import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conquiet.tasks.app import TaskApp


def load_app(reference: str) -> TaskApp:
    """Import the app that "package.module:app" or "file.py:app" names, also from the current directory.

    Raises:
        ValueError: it is not of that form.
        ImportError: there is no such module or file, it has no such app, or it raises an error.
    """
    module_name, attribute = _parts(reference)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise _not_found("module", reference) from error
    except ImportError:
        raise
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        raise ImportError(
            f"module {module_name!r}, named by {reference!r}, raises an error:\n{trace}"
        ) from error
    found: Any = module
    for name in attribute.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, TaskApp):
        what = "has no such attribute" if found is None else f"has a {type(found).__name__} there"
        apps = [name for name, value in vars(module).items() if isinstance(value, TaskApp)]
        raise ImportError(  # noqa: TRY004 -- a wrong name, as one that is not there
            f"{reference!r} names no TaskApp: module {module_name!r} {what}; "
            f"its TaskApps are: {', '.join(apps) or 'none'}"
        )
    return found


def source_directory(reference: str) -> Path:
    """Where the code of an app is: the folder of its file, or of its outermost package; nothing is imported.

    Raises:
        ValueError, ImportError: as of `load_app`, if there is no such file or package.
    """
    package = _parts(reference)[0].partition(".")[0]
    spec = find_spec(package)
    if spec is None:
        raise _not_found("module", reference)
    # A namespace package has no file, but folders.
    found = spec.origin or next(iter(spec.submodule_search_locations or ()))
    return Path(found).parent if spec.origin else Path(found)


def _not_found(kind: str, reference: str) -> ImportError:
    """With the name that was meant, if there is a file of that name or of one like it."""
    name, _, attribute = reference.rpartition(":")
    text = f"there is no {kind} {name!r}, named by {reference!r}; the current directory is {Path.cwd()}"
    path = Path(name.removesuffix(".py") if name.endswith(".py") else name.replace(".", "/"))
    stems = [file.stem for file in path.parent.glob("*.py")]
    for stem in get_close_matches(path.name, stems, n=1):
        text += f": did you mean {path.parent / stem}.py:{attribute}?"
    return ImportError(text)


def _parts(reference: str) -> tuple[str, str]:
    """The module, which can be imported then, and the attribute."""
    module_name, separator, attribute = reference.rpartition(":")
    if not (module_name and separator and attribute):
        raise ValueError(f'name the app as "package.module:app" or "file.py:app", got {reference!r}')
    directory = Path.cwd()
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        if not path.is_file():
            raise _not_found("file", reference)
        directory, module_name = path.parent, path.stem
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    return module_name, attribute
