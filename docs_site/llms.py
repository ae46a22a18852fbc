"""llms.txt: the pages with one sentence each, for programs that read; llms-full.txt: all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from docs_site.repository import RAW, REF


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads mkdocs.yml, whose only tag is of no interest here."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def sections(root: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The navigation of the site: each section with the titles and files of its pages."""
    nav: list[dict[str, Any]] = yaml.load((root / "mkdocs.yml").read_text(), _Loader)["nav"]  # noqa: S506
    for entry in nav:
        for section, pages in entry.items():
            if isinstance(pages, str):
                yield section, [(section, pages)]
            else:
                yield section, [next(iter(page.items())) for page in pages]


def write_llms(root: Path, site: Path) -> None:
    """Write both files into the directory of the site."""
    lines, whole = ["# conquiet", ""], []
    for section, pages in sections(root):
        lines += [f"## {section}", ""]
        for title, name in pages:
            path = "README.md" if name == "index.md" else f"docs/{name}"
            text = (root / path).read_text()
            lines.append(f"- [{title}]({RAW}/{REF}/{path}): {first_sentence(text)}")
            whole.append(f"<!-- {path} -->\n\n{text}")
        lines.append("")
    summary = first_sentence((root / "README.md").read_text())
    lines[1:1] = ["", f"> {summary}"]
    (site / "llms.txt").write_text("\n".join(lines))
    (site / "llms-full.txt").write_text("\n".join(whole))


def first_sentence(text: str) -> str:
    """The first sentence below the heading of a page, without its marks."""
    for paragraph in text.split("\n\n"):
        if paragraph.strip() and not paragraph.lstrip().startswith(("#", "```", "|", "<", "![", ":::")):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", lambda found: found[1] or "", paragraph)
            return re.split(r"(?<=[.?])\s", " ".join(plain.split()), maxsplit=1)[0]
    return ""
