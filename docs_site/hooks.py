"""What mkdocs does to the pages: the README is the home page, links to the repository lead to GitHub."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from docs_site.llms import write_llms
from docs_site.repository import RAW, REF, REPOSITORY

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: What the package page shows as well, so its links are absolute.
HOME = "README.md"

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the home page."""
    files.append(File.generated(config, "index.md", content=(ROOT / HOME).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn each link to a file of the repository into one that works on the site."""
    uri = page.file.src_uri
    source = HOME if uri == "index.md" else f"docs/{uri}"

    def turn(found: re.Match[str]) -> str:
        return f"{found[1]}{site_link(found[2], source, uri)}{found[3]}"

    return _LINK.sub(turn, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt` beside the pages."""
    write_llms(ROOT, Path(config.site_dir))


def site_link(link: str, source: str, uri: str) -> str:
    """The link of a page at `source` in the repository, as it must be on the site's page `uri`."""
    path, hash_sign, anchor = link.partition("#")
    for prefix in (f"{REPOSITORY}/blob/main/", f"{REPOSITORY}/tree/main/", f"{RAW}/main/"):
        if path.startswith(prefix):
            target = path.removeprefix(prefix)
            break
    else:
        if not path or "://" in path or path.startswith("mailto:"):
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / target).exists():
        raise PluginError(f"{source}: the link {link} leads to no file")
    if target == HOME:
        target = "docs/index.md"
    if target.startswith("docs/"):
        here = posixpath.dirname(uri)
        return posixpath.relpath(target.removeprefix("docs/"), here or ".") + hash_sign + anchor
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/{REF}/{target}{hash_sign}{anchor}"
