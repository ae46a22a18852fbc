"""What a Pipes launch of a Spark job runs: the job itself, and its report through Pipes.

As `spark-submit spark_job.py publish …` or `python -m dagster_conquiet.pipes.spark_job publish …`.
"""

from __future__ import annotations

import sys

from dagster_pipes import open_dagster_pipes

from conquiet.spark.jobs.runner import report_of_job
from dagster_conquiet.pipes.writer import RedisStreamMessageWriter


def main() -> None:
    """Run the job; its failure is in its report, which the launching side raises."""
    job, *arguments = sys.argv[1:]
    with open_dagster_pipes(message_writer=RedisStreamMessageWriter()) as pipes:
        report = report_of_job(job, arguments)
        pipes.report_custom_message(report)
        if not report["exit_code"]:
            facts = {name: value for name, value in report.items() if name not in ("exit_code", "job")}
            pipes.report_asset_materialization(metadata=facts | {"dagster/row_count": report["messages"]})


if __name__ == "__main__":
    main()
