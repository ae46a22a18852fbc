"""What a spark-submit of a test needs."""

from __future__ import annotations

import sys
from pathlib import Path

from examples.demo.spark_settings import submit_environment

__all__ = ["spark_submit", "submit_environment"]


def spark_submit() -> str:
    """The one of the tests' Spark."""
    return str(Path(sys.executable).with_name("spark-submit"))
