"""The figures that a run prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.plan import MAX_ATTEMPTS, Plan
from tests.chaos.sender import Reason
from tests.chaos.trouble import Kind


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a run did; without violations it was a success."""

    plan: Plan
    database: str
    sent: int = 0
    failed_sends: Counter[Reason] = field(default_factory=Counter)
    repeated_sends: int = 0
    effects: int = 0
    late_effects: int = 0
    highest_attempt: int = 0
    #: Entries that failovers lost, and messages that have no other entry.
    lost_entries: int = 0
    lost_for_good: int = 0
    #: Effects of lost entries; messages with two; those behind a later message of the same key.
    lost_effects: int = 0
    doubled_by_failover: int = 0
    lost_out_of_order: int = 0
    #: What workers have logged.
    skipped: int = 0
    rows_locked: int = 0
    unavailable: int = 0
    trouble: Counter[Kind] = field(default_factory=Counter)
    noisy_s: float = 0.0
    drained_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    #: What was left to do when nothing had been settled for long: nothing of it is lost.
    unfinished: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan, trouble, failed = self.plan, self.trouble, self.failed_sends
        seconds = self.noisy_s + self.drained_s
        lines = [
            f"chaos: {plan.messages:,} messages, {plan.keys} keys, {plan.partitions} partitions, "
            f"{plan.workers} workers, {self.database}, seed {plan.seed}",
            f"  sent      {self.sent:,} ({failed.total():,} sends failed and were made again: a full server "
            f"refused {failed['full']:,}, no replica confirmed {failed['not replicated']:,}, "
            f"{failed['unavailable']:,} had no answer; {self.repeated_sends:,} were made twice)",
            f"  effects   {self.effects:,} ({self.late_effects:,} at a later attempt than the first, the "
            f"highest is {self.highest_attempt} of {MAX_ATTEMPTS})",
            f"  workers   {trouble['kill']} killed, {trouble['stop']} stopped for longer than their lease, "
            f"{trouble['freeze']} frozen in a transaction, {trouble['leave']} left",
            f"  servers   {trouble['restart']} restarts, {trouble['failover']} failovers to a replica that "
            f"lagged, {trouble['full']} times full",
            f"  database  {trouble['read_only']} times read-only",
            f"  failovers lost {self.lost_entries:,} entries, all of them known: {self.lost_for_good:,} "
            "messages that no replica had confirmed, the others were sent again",
            f"            {self.lost_effects:,} lost entries had their effect, {self.lost_out_of_order:,} of "
            f"them late; {self.doubled_by_failover:,} had another one when they were sent again",
            f"  repeated  {self.skipped:,} messages came again after their commit: the inbox skipped them",
            f"  waited    {self.rows_locked:,} times for a locked inbox row, {self.unavailable:,} times for "
            "the database",
            f"  time      {seconds:.1f} s, {self.noisy_s:.1f} s of it noisy; "
            f"{self.effects / max(seconds, 0.1):,.0f} messages/s",
            f"  violated  {len(self.violations) or 'nothing'}",
        ]
        lines += [f"VIOLATION {violation}" for violation in self.violations]
        return "\n".join([*lines, *(f"NOT FINISHED {what}" for what in self.unfinished)])

    def table(self) -> str:
        """The same as rows of a page of the documentation."""
        trouble, failed = self.trouble, self.failed_sends
        rows = {
            "messages sent": f"{self.sent:,}; {failed.total():,} sends failed visibly and were made again: "
            f"a full server refused {failed['full']:,}, no replica confirmed {failed['not replicated']:,}, "
            f"{failed['unavailable']:,} had no answer; {self.repeated_sends:,} were made twice for no reason",
            "workers": f"{trouble['kill']} killed, {trouble['stop']} stopped for longer than their lease, "
            f"{trouble['freeze']} frozen in a transaction, {trouble['leave']} left",
            "servers": f"{trouble['restart']} restarts, {trouble['failover']} failovers to a replica that "
            f"lagged, {trouble['full']} times full",
            "database": f"{trouble['read_only']} times read-only; workers waited {self.unavailable:,} times "
            f"for it, and {self.rows_locked:,} times for an inbox row that a frozen worker had locked",
            "effects": f"{self.effects:,}; {self.late_effects:,} at a later attempt than the first, the "
            f"highest is {self.highest_attempt} of {MAX_ATTEMPTS}",
            "came again after their commit, skipped by the inbox": f"{self.skipped:,}",
            "lost by the failovers": f"{self.lost_for_good:,} messages, all of them known, none of them "
            f"confirmed by a replica; {self.doubled_by_failover:,} were handled, lost and sent again",
            "time": f"{(self.noisy_s + self.drained_s) / 60:.0f} minutes",
            "lost otherwise, doubled, out of order, dead letters": f"{len(self.violations)}",
            "not finished": f"{len(self.unfinished)}",
        }
        return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows.items())])
