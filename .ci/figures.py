"""Prints how large and how nested the library is; `make check` shows the figures and never fails by them."""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

SRC = Path(__file__).resolve().parent.parent / "src"

#: More parameters than this are listed; CLI commands, and what users write in a DAG, have one per option.
MOST_PARAMETERS = 8
MANY_PARAMETERS_IN = ("conquiet.cli",)
MANY_INIT_PARAMETERS_IN = tuple(
    f"airflow_provider_conquiet.{package}" for package in ("operators", "sensors", "triggers", "decorators")
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the library, parsed."""

    name: str
    path: Path
    is_package: bool
    lines: int
    tree: ast.Module

    @property
    def package(self) -> str:
        """The directory that it is counted under: one level below `conquiet`, or the package itself."""
        parts = self.path.relative_to(SRC).parts
        return ".".join(parts[: 2 if parts[0] == "conquiet" and len(parts) > 2 else 1])

    def is_in(self, packages: tuple[str, ...]) -> bool:
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)


def load_modules() -> dict[str, Module]:
    modules = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text()
        modules[name] = Module(name, path, is_package, text.count("\n"), ast.parse(text))
    return modules


def functions_of(module: Module) -> Iterator[tuple[str, Function, bool]]:
    """Every function with its qualified name, and whether its first parameter is `self` or `cls`."""

    def visit(node: ast.AST, prefix: str, in_class: bool) -> Iterator[tuple[str, Function, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                decorators = {item.id for item in child.decorator_list if isinstance(item, ast.Name)}
                yield f"{prefix}{child.name}", child, in_class and "staticmethod" not in decorators
                yield from visit(child, f"{prefix}{child.name}.", False)
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.", True)
            else:
                yield from visit(child, prefix, in_class)

    return visit(module.tree, "", False)


def length_of(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def print_sizes(modules: dict[str, Module]) -> None:
    all_modules = modules.values()
    classes = [
        (length_of(node), f"{module.name}.{node.name}")
        for module in all_modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    functions = [
        (length_of(node), f"{module.name}.{name}")
        for module in all_modules
        for name, node, _ in functions_of(module)
    ]
    lines, name = max(classes)
    print(f"lines of src                  {sum(module.lines for module in all_modules):,}")
    print(f"largest class                 {lines}  {name}")
    lines, name = max((module.lines, module.name) for module in all_modules)
    print(f"largest file                  {lines}  {name}")
    lines, name = max(functions)
    median = statistics.median(length for length, _ in functions)
    print(f"function lines                median {median:g}, largest {lines}  {name}")


def print_long_parameter_lists(modules: dict[str, Module]) -> None:
    found = []
    for module in modules.values():
        if module.is_in(MANY_PARAMETERS_IN):
            continue
        for name, node, is_method in functions_of(module):
            if node.name == "__init__" and module.is_in(MANY_INIT_PARAMETERS_IN):
                continue
            arguments = node.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - is_method
            if count > MOST_PARAMETERS:
                found.append((count, f"{module.name}.{name}"))
    print(f"more than {MOST_PARAMETERS} parameters        {len(found)}")
    for count, name in sorted(found, reverse=True):
        print(f"    {count:3}  {name}")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def print_private_functions(modules: dict[str, Module]) -> None:
    private: Counter[str] = Counter()
    used_once: Counter[str] = Counter()
    for module in modules.values():
        references = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        names = [node.name for _, node, _ in functions_of(module) if is_private(node.name)]
        private[module.package] += len(names)
        used_once[module.package] += sum(references[name] == 1 for name in names)
    print(f"private functions used once   {share(used_once.total(), private.total())}")
    for package in sorted(private):
        if private[package]:
            print(f"    {package:28} {share(used_once[package], private[package])}")


def share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %  ({part} of {whole})"


class ImportGraph:
    """Which module imports which, with imports for type checkers and inside of functions."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self._modules = modules
        self._names = {name: self._imported_names(module) for name, module in modules.items()}
        self.edges = {
            name: {
                home
                for target in self._targets(module)
                if (home := self._home_of(*target)) is not None and home != name
            }
            for name, module in modules.items()
        }

    def cycles(self) -> list[list[str]]:
        """Groups of modules that reach each other."""
        reached = {name: self._reachable(name) for name in self.edges}
        cycles, seen = [], set[str]()
        for name in self.edges:
            if name not in seen and name in reached[name]:
                cycle = sorted(other for other in reached[name] if name in reached[other])
                seen.update(cycle)
                cycles.append(cycle)
        return cycles

    def _reachable(self, start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for target in self.edges[waiting.pop()] - found:
                found.add(target)
                waiting.append(target)
        return found

    def _targets(self, module: Module) -> Iterator[tuple[str, str | None]]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(module, node)
                yield from ((source, alias.name) for alias in node.names)

    def _imported_names(self, module: Module) -> dict[str, tuple[str, str]]:
        return {
            alias.asname or alias.name: (self._absolute(module, node), alias.name)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @staticmethod
    def _absolute(module: Module, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.name.split(".")
        base = parts[: len(parts) - node.level + module.is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _home_of(self, source: str, name: str | None) -> str | None:
        """The module that defines what is imported; the package itself if it cannot be found."""
        if name is not None and f"{source}.{name}" in self._modules:
            return f"{source}.{name}"
        if source not in self._modules:
            return None
        if self._modules[source].is_package and name in self._names[source]:
            return self._home_of(*self._names[source][name]) or source
        return source


def print_import_cycles(modules: dict[str, Module]) -> None:
    cycles = ImportGraph(modules).cycles()
    print(f"import cycles                 {len(cycles)}")
    for cycle in cycles:
        print(f"    {', '.join(cycle)}")


class FrameCounter:
    """A handler that counts the frames between it and the entry function."""

    def __init__(self, entry: str | None) -> None:
        self._entry = entry
        self.names: list[str] = []
        self.was_called = threading.Event()

    def __call__(self, _message: Any, _session: Any) -> None:
        self.names = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename != threading.__file__:
                self.names.append(frame.f_code.co_qualname)
            if frame.f_code.co_name == self._entry:
                break
            frame = frame.f_back
        self.was_called.set()


def print_frames() -> None:
    from conquiet import EmbeddedServer, EmbeddedServerError

    try:
        with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
            for name, count in measured_frames(server.url, f"sqlite:///{directory}/figures.db"):
                print(f"frames of {name:20}{len(count.names)}  {' < '.join(count.names)}")
    except EmbeddedServerError as error:
        print(f"frames to the handler         not measured: {error}")


def measured_frames(url: str, database: str) -> Iterator[tuple[str, FrameCounter]]:
    from sqlalchemy import create_engine

    from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, drain
    from conquiet.mq import PartitionConsumer, Producer, Topics, drain_partition
    from conquiet.queue import open_client

    engine, limits = create_engine(database), DrainLimits(max_messages=1)
    client = open_client(url)
    with RedisStreamsQueue.from_url(url, QueueConfig("figures", "figures", "figures")) as queue:
        queue.enqueue({"n": 1})
        handler = FrameCounter("drain")
        drain(queue, handler, engine, limits)
        yield "drain", handler

    topic = Topics(client).create("figures-topic")
    producer = Producer(client)
    producer.send(topic.name, {"n": 1})
    handler = FrameCounter("drain_partition")
    drain_partition(topic, 0, "drained", handler, engine, limits)
    yield "drain_partition", handler

    handler = FrameCounter(None)
    consumer = PartitionConsumer(topic, "consumed", handler, engine)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        handler.was_called.wait(10)
    finally:
        consumer.stop()
        thread.join()
    yield "a consumer's thread", handler
    client.close()


def main() -> None:
    modules = load_modules()
    print_sizes(modules)
    print_long_parameter_lists(modules)
    print_private_functions(modules)
    print_import_cycles(modules)
    print_frames()


if __name__ == "__main__":
    main()
