"""One transaction per message, effects once, publish what was committed; knows no Redis."""

from conquiet.db.inbox import Inbox
from conquiet.db.outage_codes import is_connection_lost, is_read_only, is_refused
from conquiet.db.outbox import Outbox, OutboxRow
from conquiet.db.session import DbSession

__all__ = [
    "DbSession",
    "Inbox",
    "Outbox",
    "OutboxRow",
    "is_connection_lost",
    "is_read_only",
    "is_refused",
]
