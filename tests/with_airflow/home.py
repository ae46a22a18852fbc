"""A private Airflow for this process: its home and its database, chosen before Airflow is imported."""

from __future__ import annotations

from airflow_provider_conquiet.testing import choose_home


def choose() -> None:
    """Set the environment that Airflow reads when it is imported; every test process has its own home."""
    choose_home()
