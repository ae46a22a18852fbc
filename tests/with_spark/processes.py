"""Which processes talk to a server."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit


def pids_connected_to(url: str) -> list[int]:
    """Every other process with an open connection to the server of a test: the workers that write to it."""
    port = f":{urlsplit(url).port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{line[9]}]" for line in lines if line[2].endswith(port) and line[3] == "01"}
    pids = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) in sockets:
                pids.add(int(link.parts[2]))
        except OSError:
            continue
    return sorted(pids - {os.getpid()})
