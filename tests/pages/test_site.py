"""`make docs`: builds strictly and without the network; the site needs nothing from anywhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs_site.__main__ import write_versions
from docs_site.hooks import site_link
from docs_site.llms import sections
from docs_site.repository import REPOSITORY
from tests.packaging.environments import ROOT, VERSION

PAGES = [name for _, pages in sections(ROOT) for _, name in pages]
#: What a browser loads by itself.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\">\s]+)|<link[^>]*\shref=\"?([^\">\s]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of this version, built once, behind a proxy that is not there: nothing can be asked for."""
    out = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    ran = subprocess.run(
        [sys.executable, "-m", "docs_site", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr
    return out


def test_every_page_is_in_the_site_and_in_its_navigation(site):
    on_disk = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}

    assert set(PAGES) == on_disk | {"index.md"}
    for name in PAGES:
        assert (site / VERSION / name).with_suffix(".html").is_file()


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        for script, link in _LOADED.findall(page.read_text()):
            assert "//" not in script + link or link.startswith("https://conquiet"), (page, script, link)


def test_the_search_knows_every_page(site):
    index = json.loads((site / VERSION / "search" / "search_index.json").read_text())

    found = {document["location"].partition("#")[0] for document in index["docs"]}
    assert found >= {name.removesuffix(".md") + ".html" for name in PAGES}


def test_the_reference_has_what_the_docstrings_say(site):
    assert (
        "The most messages that one drain handles" in (site / VERSION / "reference/conquiet.html").read_text()
    )


def test_llms_txt_lists_every_page_with_a_sentence(site):
    lines = (site / VERSION / "llms.txt").read_text().splitlines()
    listed = [line for line in lines if line.startswith("- [")]

    assert lines[0] == "# conquiet"
    assert len(listed) == len(PAGES)
    assert [line for line in listed if not re.search(r"\.md\): \S.{15,}", line)] == []
    assert (site / "llms.txt").read_text() == (site / VERSION / "llms.txt").read_text()
    assert "XREADGROUP" in (site / VERSION / "llms-full.txt").read_text()


def test_versions_are_listed_newest_first_and_the_latest_is_where_one_comes(tmp_path):
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
        (tmp_path / version / "llms.txt").touch()

    write_versions(tmp_path, "0.10.0")

    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [("0.10.0", ["latest"]), ("0.9.0", [])]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("link", "source", "uri", "wanted"),
    [
        (f"{REPOSITORY}/blob/main/docs/core.md#batches", "README.md", "index.md", "core.md#batches"),
        (f"{REPOSITORY}/blob/main/README.md", "docs/faq.md", "faq.md", "index.md"),
        ("../dags", "docs/airflow.md", "airflow.md", f"{REPOSITORY}/tree/main/dags"),
        ("../options.md#spark", "docs/reference/spark.md", "reference/spark.md", "../options.md#spark"),
        ("#batches", "docs/core.md", "core.md", "#batches"),
        ("https://example.org/a", "docs/core.md", "core.md", "https://example.org/a"),
    ],
)
def test_a_link_works_in_the_repository_and_on_the_site(link, source, uri, wanted):
    assert site_link(link, source, uri) == wanted


def test_the_site_of_a_version_links_to_its_tag():
    program = (
        "from docs_site.hooks import site_link; print(site_link('../dags', 'docs/airflow.md', 'airflow.md'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"CONQUIET_DOCS_REF": "v1.2.3"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == f"{REPOSITORY}/tree/v1.2.3/dags\n"
