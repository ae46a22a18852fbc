"""The span of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager

from conquiet.tracing import working
from dagster_conquiet.attempts import Context, attempt_of


def step_span(context: Context) -> AbstractContextManager[None]:
    """What a step sends and handles inside belongs to its span; nothing while tracing is off."""
    attempt = attempt_of(context)
    attributes = {
        "dagster.run_id": attempt.run_id,
        "dagster.step": attempt.step,
        "dagster.retry_number": attempt.retry_number,
    }
    return working(f"step {attempt.step}", attributes)
