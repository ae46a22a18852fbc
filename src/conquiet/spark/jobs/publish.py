"""Each row of files, of a table or of a query becomes one message of a topic or stream."""

import sys

from conquiet.spark.jobs.runner import run_job

if __name__ == "__main__":
    sys.exit(run_job("publish"))
