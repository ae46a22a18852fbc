"""Fixtures of the Airflow tests, for those that need Spark too; importing them chooses a private Airflow."""

from __future__ import annotations

from tests.with_airflow.conftest import airflow_database, context, run_dag

__all__ = ["airflow_database", "context", "run_dag"]
