"""Each group and window of a topic, a table, a query or files becomes one message."""

import sys

from conquiet.spark.jobs.runner import run_job

if __name__ == "__main__":
    sys.exit(run_job("aggregate"))
