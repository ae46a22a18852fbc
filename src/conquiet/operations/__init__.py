"""For operators: is the server safe, are the groups healthy, how fast does the backlog move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.operations.audit import AuditEntry as AuditEntry, AuditLog as AuditLog
    from conquiet.operations.checks import diagnose as diagnose, worst_level as worst_level
    from conquiet.operations.database import (
        DatabaseFacts as DatabaseFacts,
        database_facts as database_facts,
    )
    from conquiet.operations.facts import (
        GroupFacts as GroupFacts,
        ServerFacts as ServerFacts,
        TopicFacts as TopicFacts,
        server_facts as server_facts,
        topic_facts as topic_facts,
    )
    from conquiet.operations.findings import Finding as Finding, Level as Level
    from conquiet.operations.queues import (
        QueueFacts as QueueFacts,
        queue_facts as queue_facts,
        queue_names as queue_names,
        queue_sample as queue_sample,
        queue_sample_name as queue_sample_name,
    )
    from conquiet.operations.rates import (
        Rates as Rates,
        Sample as Sample,
        rates_between as rates_between,
        take_samples as take_samples,
    )
    from conquiet.operations.samples import SampleRing as SampleRing
    from conquiet.operations.schedule_runs import run_schedule_now as run_schedule_now
    from conquiet.operations.streams import (
        PlainStreams as PlainStreams,
        is_plain_stream as is_plain_stream,
        plain_streams as plain_streams,
    )

# On first use: a command that asks for the names of queues pays for no SQLAlchemy.
_NAMES_OF = {
    "audit": "AuditEntry AuditLog",
    "checks": "diagnose worst_level",
    "database": "DatabaseFacts database_facts",
    "facts": "GroupFacts ServerFacts TopicFacts server_facts topic_facts",
    "findings": "Finding Level",
    "queues": "QueueFacts queue_facts queue_names queue_sample queue_sample_name",
    "rates": "Rates Sample rates_between take_samples",
    "samples": "SampleRing",
    "schedule_runs": "run_schedule_now",
    "streams": "PlainStreams is_plain_stream plain_streams",
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _NAMES_OF)
