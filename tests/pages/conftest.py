"""Pages that use Airflow find a private one."""

from __future__ import annotations

from tests.with_airflow import home

# Before a page imports Airflow, which makes its home then.
home.choose()
