"""A DAG with @task.pyspark, in a process of its own: Airflow stops the Spark session at the task's end.

Run as `python -m tests.with_spark.pyspark_task URL TOPIC`; prints the state of the run and what was returned.
"""

from __future__ import annotations

import os
import sys

from tests.with_airflow import home

home.choose()

from airflow.dag_processing.bundles.manager import DagBundlesManager  # noqa: E402
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db  # noqa: E402
from airflow.sdk import DAG, task  # noqa: E402
from airflow.utils.db import initdb  # noqa: E402


def main(url: str, topic: str) -> None:
    """Run the DAG."""
    with DAG("publish_with_pyspark", schedule=None) as dag:

        @task.pyspark(config_kwargs={"spark.master": "local[1]", "spark.ui.enabled": "false"})
        def publish_numbers(spark):
            from conquiet.spark import publish, register

            register(spark)
            publish(spark.range(50).withColumnRenamed("id", "n"), url=url, topic=topic)
            return spark.read.format("redis-stream").options(url=url, topic=topic).load().count()

        publish_numbers()  # type: ignore[call-arg]  # Airflow hands the session in

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    run = dag.test()
    counted = run.get_task_instance("publish_numbers").xcom_pull(task_ids="publish_numbers")
    print(f"\n{run.state.value} {counted}")


if __name__ == "__main__":
    main(*sys.argv[1:])
