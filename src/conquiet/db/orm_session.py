"""JoinedSession: the ORM session in a transaction that is ended elsewhere."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

#: "rollback_only": its commit() flushes and leaves the transaction to us.
JOINED: dict[str, Any] = {"join_transaction_mode": "rollback_only", "close_resets_only": False}


class JoinedSession(Session):
    """Of one transaction."""

    #: Whether it has rolled that transaction back.
    has_rolled_back = False


# Once for all of them: a listener for each session costs more than its statement, and SQLAlchemy's registry
# of listeners, which knows objects by their ids, mixes up those of several threads.
@event.listens_for(JoinedSession, "after_soft_rollback")
def _note_rollback(session: JoinedSession, ended: SessionTransaction) -> None:
    session.has_rolled_back |= ended.parent is None
