"""The table of holes is complete and names tests that exist; and the holes that only the files show."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "holes.md").read_text().splitlines()
    if re.match(r"\| [A-Z]\d+ ", line)
]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@cache
def functions_of(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def sources(folder: str, pattern: str = "*.py") -> list[Path]:
    return sorted((ROOT / folder).rglob(pattern))


def test_every_known_hole_has_its_row():
    wanted = {f"W{n}" for n in range(1, 28)} | {f"S{n}" for n in range(1, 16)}

    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)
    # The others were found by trials; their number is that of the point.
    assert wanted <= set(names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_whether_it_applies_and_names_tests_that_exist(row):
    _, _, here, named = row
    tests = re.findall(r"`([^`]+)::(test_\w+)`", named)

    assert here.startswith(("applies", "cannot apply because "))
    assert tests
    for path, name in tests:
        assert name in functions_of(ROOT / "tests" / path), f"{path} has no {name}"


def test_the_tests_that_the_page_of_the_mq_names_exist():
    named = re.findall(r"`([\w./]+)::(test_\w+)`", (ROOT / "docs" / "mq.md").read_text())

    assert named
    for path, name in named:
        assert name in functions_of((ROOT / "tests/with_redis/mq" / path).resolve()), f"{path} has no {name}"


def test_the_code_has_no_hooks_for_tests():
    # What users test with, and the projects that they begin with: nothing else of the code imports them.
    kits = ("conquiet/testing/", "conquiet/cli/projects/", "airflow_provider_conquiet/testing.py")
    for file in sources("src"):
        text = file.read_text()
        if str(file.relative_to(ROOT / "src")).startswith(kits):
            continue
        assert not re.search(r"^\s*(?:from|import)\s+(?:pytest|unittest|tests)\b", text, re.MULTILINE), file
        assert "PYTEST" not in text, file


def test_no_test_is_switched_off():
    off = re.compile(r"mark\.(?:skip|xfail)\b|unittest\.skip")

    assert [file.name for file in sources("tests") if off.search(file.read_text())] == []


def test_every_variable_that_a_page_names_is_read():
    code = "".join(file.read_text() for folder in ("src", "tests") for file in sources(folder))
    named = {name for page in PAGES for name in re.findall(r"\bCONQUIET_[A-Z_]*[A-Z]\b", page.read_text())}

    assert named - set(re.findall(r"\bCONQUIET_[A-Z_]*[A-Z]\b", code)) == set()
