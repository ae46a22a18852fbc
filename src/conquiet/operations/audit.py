"""AuditLog: who changed what with the page; a stream in Redis."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from conquiet.queue import Client
from conquiet.queue.connection import as_text, run_command
from conquiet.queue.message import data_of

#: The stream; about its last 10,000 entries are kept.
AUDIT_KEY = "conquiet:audit"
_KEPT = 10_000
#: Entries behind the first step of an action among which its last one is looked for.
_FOLLOWING = 500

Outcome = Literal["begun", "done", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One step of an action: it is written before the change, and once more when it has ended."""

    user: str
    #: A stable name such as "replay".
    action: str
    #: The topic, stream, queue or schedule.
    subject: str
    outcome: Outcome
    #: The command of the command line that does the same.
    command: str = ""
    #: How many messages, tasks or consumers were changed; `None` before the end.
    count: int | None = None
    #: What came of it, in a sentence; of a failure, why.
    detail: str = ""
    #: The entry's id; empty before it is written.
    id: str = ""
    #: Of the last step: the id of the first one.
    began: str = ""

    @property
    def at_ms(self) -> int:
        """When it was written, by the server's clock."""
        return int(self.id.partition("-")[0] or 0)


class AuditLog:
    """Appends to the audit stream, and reads it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(self, entry: AuditEntry) -> str:
        """Append; returns the entry's id. A caller that cannot write it must not make its change.

        Raises:
            QueueError: Redis failed, or its ACL forbids it.
        """
        facts = {name: value for name, value in asdict(entry).items() if name != "id" and value is not None}
        add = ("XADD", AUDIT_KEY, "MAXLEN", "~", _KEPT, "*", "data", json.dumps(facts))
        return as_text(self._run(*add))

    def last(self, limit: int = 100, *, before: str | None = None) -> list[AuditEntry]:
        """The last entries, the newest first."""
        end = "+" if before is None else f"({before}"
        return [_read(*entry) for entry in self._run("XREVRANGE", AUDIT_KEY, end, "-", "COUNT", limit)]

    def last_step(self, began: str) -> AuditEntry | None:
        """How an action that began with this entry ended; the entry itself as long as that is not known."""
        found = None
        for entry in self._run("XRANGE", AUDIT_KEY, began, "+", "COUNT", _FOLLOWING):
            step = _read(*entry)
            if began in (step.id, step.began):
                found = step
        return found

    def _run(self, *command: Any) -> Any:
        return run_command(self._client, *command, stream=AUDIT_KEY, group=None)


def _read(entry_id: bytes, fields: Any) -> AuditEntry:
    """An entry; of one that another program wrote, what it has."""
    try:
        found = json.loads(data_of(fields))
    except ValueError:
        found = None
    facts: dict[str, Any] = found if isinstance(found, dict) else {}
    texts = {
        name: str(facts.get(name, "")) for name in ("user", "action", "subject", "command", "detail", "began")
    }
    outcome = facts.get("outcome")
    count = facts.get("count")
    return AuditEntry(
        **texts,
        id=as_text(entry_id),
        outcome=outcome if outcome in ("begun", "done", "failed", "stopped") else "failed",
        count=count if isinstance(count, int) else None,
    )
