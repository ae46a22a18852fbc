"""Each tutorial, as its reader does it: the files in an empty directory, then the commands in their order."""

from __future__ import annotations

import pytest

from tests.packaging.environments import ROOT
from tests.pages.whole_files import Reader, files_of

TUTORIALS = sorted(path.name for path in (ROOT / "docs").glob("tutorial-*.md"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group("spark")] * (name == "tutorial-spark.md"))
        for name in TUTORIALS
    ],
)
def test_a_tutorial_does_what_it_says(name, tmp_path):
    reader = Reader(tmp_path)
    reader.save(files_of(f"docs/{name}"))

    try:
        assert reader.follow(f"docs/{name}") >= 1
    finally:
        reader.close()


def test_each_way_to_drain_has_a_tutorial():
    assert [f"tutorial-{way}.md" for way in ("airflow", "dagster", "python", "spark", "tasks")] == TUTORIALS
