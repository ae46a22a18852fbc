"""The figures that a run of tasks prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.task_plan import TaskPlan
from tests.chaos.trouble import Kind


@dataclass(slots=True, kw_only=True)
class TaskFigures:
    """What a run did; without violations it was a success."""

    plan: TaskPlan
    database: str
    sent: int = 0
    chords: int = 0
    failed_sends: int = 0
    repeated_sends: int = 0
    states: Counter[str] = field(default_factory=Counter)
    #: Dead letters by the class of their error, those that the plan wants among them.
    reasons: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    late_effects: int = 0
    highest_attempt: int = 0
    #: Tasks without a session that began more than once.
    ran_again: int = 0
    #: What workers have logged.
    skipped: int = 0
    rows_locked: int = 0
    unavailable: int = 0
    taken_over: int = 0
    fenced: int = 0
    begun_anew: int = 0
    trouble: Counter[Kind] = field(default_factory=Counter)
    noisy_s: float = 0.0
    drained_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    #: What was left to do when nothing had changed for long: nothing of it is lost.
    unfinished: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        plan, trouble, seconds = self.plan, self.trouble, self.noisy_s + self.drained_s
        reasons = ", ".join(f"{count:,} {name}" for name, count in self.reasons.most_common())
        lines = [
            f"chaos: {plan.tasks:,} tasks, {plan.workers} workers (processes, threads, event loops), "
            f"{self.database}, seed {plan.seed}",
            f"  sent      {self.sent:,}, {self.chords:,} chords ({self.failed_sends:,} calls failed and were "
            f"made again, {self.repeated_sends:,} were made twice)",
            f"  ended     {', '.join(f'{count:,} {state}' for state, count in self.states.most_common())}",
            f"  reasons   {reasons or 'none'}",
            f"  effects   {self.effects:,} ({self.late_effects:,} at a later attempt than the first, the "
            f"highest is {self.highest_attempt})",
            f"  workers   {trouble['kill']} killed, {trouble['stop']} stopped for longer than their "
            f"heartbeat, {trouble['leave']} left; {trouble['kill_child']} children killed, "
            f"{trouble['stop_child']} stopped",
            f"  server    {trouble['restart']} times killed, {trouble['full']} times full",
            f"  database  {trouble['read_only']} times read-only",
            f"  repeated  {self.skipped:,} tasks came again after their commit: the inbox skipped them; "
            f"{self.ran_again:,} without a session ran again",
            f"  taken     {self.taken_over:,} tasks taken over, {self.fenced:,} settlements refused, "
            f"{self.begun_anew:,} consumers begun anew",
            f"  waited    {self.rows_locked:,} times for a locked inbox row, {self.unavailable:,} times for "
            "the database",
            f"  time      {seconds:.1f} s, {self.noisy_s:.1f} s of it noisy; "
            f"{self.sent / max(seconds, 0.1):,.0f} tasks/s",
            f"  violated  {len(self.violations) or 'nothing'}",
        ]
        lines += [f"VIOLATION {violation}" for violation in self.violations]
        return "\n".join([*lines, *(f"NOT FINISHED {what}" for what in self.unfinished)])
