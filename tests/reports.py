"""The report of a drain that an error has ended."""

from __future__ import annotations

from typing import Any

from conquiet import DrainReport


def report_of(error: Any) -> DrainReport:
    """What the drain had done until then; an error of any class carries it."""
    report: DrainReport = error.drain_report
    return report
