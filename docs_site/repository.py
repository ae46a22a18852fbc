"""Where the files are that the site links to: on `main`, or at the tag of the version whose site it is."""

from __future__ import annotations

import os

REPOSITORY = "https://github.com/conquiet/conquiet"
RAW = "https://raw.githubusercontent.com/conquiet/conquiet"
#: The tag of a version, for its site.
REF = os.environ.get("CONQUIET_DOCS_REF") or "main"
