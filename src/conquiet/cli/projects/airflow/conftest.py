"""Before any test imports Airflow: a private home for it, and the fixture `dag_test_bed`."""

pytest_plugins = ["airflow_provider_conquiet.testing"]
