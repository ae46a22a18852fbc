"""The script that knows which content is in the payload store."""

from __future__ import annotations

from conquiet.queue.connection import Client, visible_errors
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.scripts import script


def index_payload(client: Client, keys: QueueKeys, key: str, facts: str, *, must_write: bool) -> None:
    """Write what is about to be stored into the index; with `must_write` on a full server too."""
    with visible_errors("index payload", stream=keys.prefix, group=None):
        script("index_payload").run(client, [keys.payloads], (key, facts, int(must_write)))
